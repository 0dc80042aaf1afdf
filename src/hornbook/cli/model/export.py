"""`hornbook export`: write a checkpoint as a certified Hugging Face folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, Target
from hornbook.cli.train.training import use_command
from hornbook.errors import UsageError

if TYPE_CHECKING:
    from hornbook.model.hf.certificate import Certificate

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def export(
    target: Target,
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write; new or empty.")],
    to: Annotated[
        Literal["hf", "peft"], typer.Option("--to", help="hf: a whole model. peft: the adapter alone.")
    ] = "hf",
    dtype: Annotated[
        Literal["fp32", "bf16"], typer.Option("--dtype", help="Data type of the stored weights.")
    ] = "fp32",
    quantize: Annotated[
        str | None, typer.Option("--quantize", help="Quantize the weights: int8, int4, int4-group64, nf4 ...")
    ] = None,
    certificate: Annotated[
        bool, typer.Option("--certificate/--no-certificate", help="Compare the logits with those of transformers.")
    ] = True,
    dry_run: DryRun = False,
) -> Result:
    """Write a Hugging Face folder, and check that transformers computes the same logits from it.

    The folder appears only when it is complete and certified; exit code 3 if the certificate fails. An adapter is
    merged into its base, unless you choose --to peft. eval and generate read what --quantize writes.
    """
    from hornbook.cli.model.export_forms import export_adapter, export_quantized
    from hornbook.cli.model.out_folder import check_free, new_model, report_text
    from hornbook.model.config.head import LabelHeadConfig
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.hf.tokenizer import begin_texts
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.run.checkpoints.path import checkpoint_path

    if to == "peft" and quantize is not None:
        raise UsageError("--quantize needs a whole model: leave out --to peft")
    folder = checkpoint_path(target)
    check_free(out)
    if to == "peft":
        return export_adapter(folder, out, dry_run=dry_run)
    if quantize is not None:
        return export_quantized(folder, out, quantize, dry_run=dry_run)
    config, vocab, stream, with_tokenizer = read_merged(folder)
    report: dict[str, Any] = {"checkpoint": str(folder), "out": str(out), "dtype": dtype}
    if dry_run:
        return Result(report | _plan(config, vocab, DTYPES[dtype]), _plan_text(report, config, vocab))
    with new_model(out, "export", folder, report) as partial:
        tensors = dict(stream)
        tokenizer = with_tokenizer if (with_tokenizer / "tokenizer.json").exists() else None
        start = decoder_start_of(folder)
        write_hf(partial, tensors, config, vocab, tokenizer, dtype=DTYPES[dtype], decoder_start=start)
        if tokenizer is not None and config.kind == "decoder" and isinstance(config.head, LabelHeadConfig):
            begin_texts(partial)
        found, note = _certify(partial, tensors) if certificate else (None, "not certified (--no-certificate)")
    report["certificate"] = found.to_json() if found else None
    notes = [f"[yellow]warning[/] {note}"] if found is None else []
    notes.append(f"next: {use_command(config.head.kind, str(out))}")
    return Result(report, report_text(out, report["files"], found.summary() if found else note), notes=notes)


def _certify(folder: Path, tensors: Any) -> "tuple[Certificate | None, str]":
    """(certificate, "") or (None, the reason). Raises IntegrityError if the logits differ."""
    from hornbook.model.hf.certificate import MissingTransformers, certify

    try:
        return certify(folder, source=tensors).require(), ""
    except MissingTransformers as error:
        return None, f"exported, but {error}"


def _plan(config: Any, vocab: int, dtype: str) -> dict[str, Any]:
    from hornbook.model.hf.config import choose_architecture
    from hornbook.model.hf.hf import stored_bytes
    from hornbook.model.hf.tables.known import NATIVE

    architecture = choose_architecture(config)
    return {
        "architecture": architecture.name if architecture else NATIVE,
        "weights_bytes": stored_bytes(config, vocab, dtype),
        "dry_run": True,
    }


def _plan_text(report: dict[str, Any], config: Any, vocab: int) -> str:
    plan = _plan(config, vocab, DTYPES[report["dtype"]])
    return (
        f"would export {report['checkpoint']} to {report['out']}: {plan['architecture']}, "
        f"{plan['weights_bytes'] / 1e6:,.1f} MB of weights as {report['dtype']}; nothing written"
    )
