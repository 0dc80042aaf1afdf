"""`hornbook export`: write a checkpoint as a certified Hugging Face folder or GGUF file, an adapter, or quantized."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hornbook.cli.model.out_folder import (
    Certify,
    certify_model,
    check_free,
    new_model,
    report_text,
    tell_left_out,
    with_tokenizer,
)
from hornbook.cli.model.sample_text import SampleText, before_and_after
from hornbook.cli.result import Options, Result
from hornbook.cli.shell import Average, DryRun, Target
from hornbook.cli.train.training import use_command
from hornbook.errors import UsageError
from hornbook.progress import Progress, progress_bar

if TYPE_CHECKING:
    from hornbook.model.config.model_config import ModelConfig
    from hornbook.model.surgery.quantization.quantize import Sample
    from hornbook.model.transformer import Transformer

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class ExportOptions(Options):
    """Options of an export: folder, format and dtypes."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; new or empty.")]
    to: Annotated[
        Literal["hf", "peft", "gguf", "onnx"],
        typer.Option(help="hf: a whole model. peft: the adapter alone. gguf: for llama.cpp. onnx: for onnxruntime."),
    ] = "hf"
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "q8_0"],
        typer.Option(help="Data type of the stored weights; fp16 and q8_0 (8 bits) with --to gguf."),
    ] = "fp32"
    quantize: Annotated[str | None, typer.Option(help="Quantize the weights: int8, int4, int4-group64, nf4 ...")] = None
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="With --quantize intN: text whose errors rounding makes good (GPTQ), a folder of `hornbook tokenize`.",
        ),
    ] = None
    rows: Annotated[int, typer.Option(min=1, help="Rows of training text that --calibrate reads.")] = 64
    act_order: Annotated[
        bool, typer.Option("--act-order", help="With --calibrate: round the inputs that are largest first.")
    ] = False
    average: Average = False
    generator: Annotated[
        bool, typer.Option("--generator", help="The generator of replaced-token detection, as a masked model.")
    ] = False
    certificate: Certify = True
    dry_run: DryRun = False


def export(target: Target, options: ExportOptions) -> Result:
    """Write a Hugging Face folder, and check that transformers computes the same logits from it.

    The folder appears only when it is complete and certified; exit code 3 if the certificate fails. An adapter is
    merged into its base, unless you choose --to peft. eval and generate read what --quantize writes.
    """
    from hornbook.model.surgery.adapters.adapter_files import base_of, is_adapter
    from hornbook.model.surgery.folders import read_generator, read_merged, without_padding
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    _check_whole(options)
    _check_dtype(options.to, options.dtype, options.quantize)
    _check_calibration(options)
    folder, average = checkpoint_path(target), options.average
    check_free(options.out)
    report: dict[str, Any] = {"checkpoint": str(folder), "out": str(options.out)}
    if options.to == "peft":
        return _export_adapter(folder, options, report)
    if options.quantize is not None:
        return _export_quantized(folder, options, options.quantize, report)
    report |= {"dtype": options.dtype, "average": average}
    config, vocab, stream, beside = (
        read_generator(folder) if options.generator else read_merged(folder, average=average)
    )
    report = report if options.generator else tell_left_out(folder, report)
    base = base_of(folder) if is_adapter(folder) else folder
    config, vocab, stream = without_padding(base, config, vocab, stream, beside)
    write = {"hf": _export_hf, "gguf": _export_gguf, "onnx": _export_onnx}[options.to]
    return write(_Merged(base, config, vocab, stream, with_tokenizer(beside)), options, report)


def _export_hf(model: "_Merged", options: ExportOptions, report: dict[str, Any]) -> Result:
    """Write a Hugging Face folder, and ask transformers for its logits."""
    from hornbook.model.hf.generation_config import is_foreign
    from hornbook.model.hf.hf import stored_bytes, write_hf
    from hornbook.model.hf.hf_config import class_name, describe_class
    from hornbook.model.surgery.folders import decoder_start_of

    out, dtype, base, config, vocab = options.out, options.dtype, model.base, model.config, model.vocab
    if options.dry_run:
        size = stored_bytes(config, vocab, DTYPES[dtype])
        text = (
            f"would export {report['checkpoint']} to {out}: {describe_class(config)}, "
            f"{size / 1e6:,.1f} MB of weights as {dtype}; nothing written"
        )
        return Result(report | {"architecture": class_name(config), "weights_bytes": size, "dry_run": True}, text)
    with new_model(out, "export", Path(report["checkpoint"]), report) as partial:
        tensors = dict(model.stream)
        start, like = decoder_start_of(base), base if is_foreign(base) else None
        write_hf(partial, tensors, config, vocab, model.tokenizer, dtype=DTYPES[dtype], decoder_start=start, like=like)
        found, note = certify_model(partial, "exported", wanted=options.certificate, source=tensors)
    report["certificate"] = found.to_json() if found else None
    notes = [f"[yellow]warning[/] {note}"] if found is None else []
    notes.append(f"next: {use_command(config.head.kind, str(out))}")
    return Result(report, report_text(out, report["files"], found.summary() if found else note), notes=notes)


def _check_whole(options: ExportOptions) -> None:
    to, quantize, average = options.to, options.quantize, options.average
    if options.generator and (to == "peft" or quantize is not None or average):
        raise UsageError("--generator exports a model of its own, whole: leave out --to peft, --quantize and --average")
    if to == "peft" and quantize is not None:
        raise UsageError("--quantize needs a whole model: leave out --to peft")
    if average and (to == "peft" or quantize is not None):
        raise UsageError("--average exports a whole model: export it first, then quantize that folder")


def _check_dtype(to: str, dtype: str, quantize: str | None) -> None:
    if to == "gguf" and quantize is not None:
        raise UsageError("--to gguf stores 8 bits with --dtype q8_0: leave out --quantize")
    if to == "onnx" and (quantize is not None or dtype != "fp32"):
        raise UsageError("--to onnx stores float32: leave out --quantize and --dtype")
    if to != "gguf" and dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype} needs --to gguf; other folders take {' or '.join(DTYPES)}")


def _check_calibration(options: ExportOptions) -> None:
    from hornbook.model.config.surgery_config import Integers
    from hornbook.model.surgery.quantization.quantize import parse_format

    quantize, data = options.quantize, options.calibrate
    if data is None and options.act_order:
        raise UsageError("--act-order is an order of --calibrate: give it the text, --calibrate DATA")
    if data is not None and (quantize is None or not isinstance(parse_format(quantize), Integers)):
        raise UsageError("--calibrate is for integers: give --quantize int8, int4 or int4-group64, or leave it out")


@dataclass(frozen=True)
class _Merged:
    """A model as one, without adapters beside it."""

    base: Path
    config: Any
    vocab: int
    stream: Any
    """(name, tensor) of each weight; can be read once."""
    tokenizer: Path | None


def _export_gguf(model: _Merged, options: ExportOptions, report: dict[str, Any]) -> Result:
    """Write model.gguf beside the tokenizer that it was made of, and ask the programs that read it."""
    from hornbook.model.export.gguf_certificate import certify_gguf
    from hornbook.model.export.gguf_model import FILE, plan_gguf, write_model
    from hornbook.model.hf.hf_tokenizer import copy_tokenizer

    out, dtype = options.out, options.dtype
    plan = plan_gguf(model.config, model.vocab, dtype, model.tokenizer, out.name)
    size = sum(each.num_bytes for each in plan.infos)
    report |= {"architecture": plan.architecture, "weights_bytes": size}
    if options.dry_run:
        what = f"{plan.architecture}, {size / 1e6:,.1f} MB of weights as {dtype}"
        text = f"would write {out / FILE}: {what}; nothing written"
        return Result(report | {"dry_run": True}, text)
    with new_model(out, "export", Path(report["checkpoint"]), report) as partial:
        tensors = dict(model.stream)
        write_model(partial, plan, tensors)
        assert model.tokenizer is not None
        copy_tokenizer(model.tokenizer, partial, model.config.position.length)
        last = "not certified (--no-certificate)"
        if options.certificate:
            found = certify_gguf(partial, model.config, model.vocab, plan, tensors, dtype).require()
            report["certificate"], last = found.to_json(), found.summary()
    return Result(report, report_text(out, report["files"], last), notes=[f"next: llama-cli -m {out / FILE} -p ..."])


def _export_onnx(source: _Merged, options: ExportOptions, report: dict[str, Any]) -> Result:
    """Write the file, config.json and the tokenizer, and ask onnxruntime for its logits."""
    from hornbook.files.json_files import write_json
    from hornbook.model.build_model import build_model
    from hornbook.model.export.onnx import FILE, certify_onnx, require_onnx, write_onnx
    from hornbook.model.hf.generation_config import is_foreign
    from hornbook.model.hf.hf_config import to_json
    from hornbook.model.hf.hf_tokenizer import place_tokenizer, special_ids
    from hornbook.model.surgery.operate import fill

    config, out = source.config, options.out
    require_onnx(config)
    if options.dry_run:
        return Result(report | {"dry_run": True}, f"would write {out / FILE}; nothing written")
    with new_model(out, "export", Path(report["checkpoint"]), report) as partial:
        model = fill(build_model(config, source.vocab, "meta"), source.stream, None).eval()
        write_onnx(partial, model, config)
        tokens = special_ids(None)
        if source.tokenizer is not None:
            tokens = place_tokenizer(source.tokenizer, partial, config, foreign=is_foreign(source.base))
        write_json(partial / "config.json", to_json(config, source.vocab, dtype="float32", tokens=tokens))
        last = "not certified (--no-certificate)"
        if options.certificate:
            found = certify_onnx(partial, model, config, source.vocab).require()
            report["certificate"], last = found.to_json(), found.summary()
    return Result(report, report_text(out, report["files"], last))


def _export_adapter(folder: Path, options: ExportOptions, report: dict[str, Any]) -> Result:
    """Write the adapter of a run or checkpoint as a folder of its own, which names the path of its base."""
    from hornbook.model.surgery.adapters.adapter_files import (
        AdapterSpec,
        adapter_config,
        is_adapter,
        read_meta,
        write_adapter,
    )
    from hornbook.model.surgery.adapters.prefix import without_network
    from hornbook.model.surgery.folders import read_operated

    if not is_adapter(folder):
        raise UsageError(
            f"{folder} holds no adapter: --to peft exports one that --surgery lora, dora, ia3, prompt or prefix trained"
        )
    found, out = read_operated(folder), options.out
    digest = read_meta(folder).base_digest or ""
    steps, added = without_network(found.steps, found.added or {})
    spec = AdapterSpec(found.config, found.vocab, steps, str(found.base_folder), digest)
    keys = adapter_config(spec)
    if keys["peft_type"] == "HORNBOOK_IA3":
        raise UsageError(
            f"{folder}: transformers stores some of the layers with factors in one matrix with others, and peft has no "
            "factors of a part of one: leave out --to peft to merge them"
        )
    if fused := keys.get("rank_pattern"):
        raise UsageError(
            f"{folder}: transformers stores several of the adapted layers in one matrix ({', '.join(fused)}). A LoRA "
            f"of rank {max(fused.values())} there computes the same, but trains as another model: leave out --to peft "
            "to merge the adapter"
        )
    report |= {"base": str(found.base_folder)}
    if options.dry_run:
        return Result(report | {"dry_run": True}, f"would write the adapter of {folder} to {out}; nothing written")
    with new_model(out, "export", folder, report) as partial:
        write_adapter(partial, spec, added, with_tokenizer(folder))
    reader = f"peft.PeftModel.from_pretrained(base, {str(out)!r}) loads it"
    if keys["peft_type"].startswith("HORNBOOK_"):
        reader = "hornbook reads it; peft has no such adapter"
    last = f"base {found.base_folder}; {reader}"
    next_line = f"next: {use_command(found.config.head.kind, str(out))}"
    return Result(report, report_text(out, report["files"], last), notes=[next_line])


def _export_quantized(folder: Path, options: ExportOptions, form: str, report: dict[str, Any]) -> Result:
    """Write a model with quantized weights in its blocks; eval and generate read it."""
    from hornbook.model.build_model import build_model
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.model.surgery.operate import fill
    from hornbook.model.surgery.quantization.quantize import parse_format, quantize_model, write_quantized

    step, out = parse_format(form), options.out
    config, vocab, stream, tokenizer = read_merged(folder)
    text = None if options.calibrate is None else _sample_text(folder, config, options.calibrate)
    if text is None:
        model = fill(build_model(config, vocab, "meta"), stream, None)
        change = quantize_model(model, step)
    else:
        model = text.engine(folder)[0].model
        with progress_bar() as progress:
            change = quantize_model(model, step, _sample(text, model, options, progress))
    report |= {
        "quantize": step.model_dump(mode="json"),
        "layers": change.layers,
        "bytes_before": change.bytes_before,
        "bytes_after": change.bytes_after,
        "relative_error": change.error,
        "output_errors": change.output_errors,
    }
    tell_left_out(folder, report)
    sizes = f"{change.bytes_before / 1e6:,.1f} MB as float32, {change.bytes_after / 1e6:,.1f} MB as {form}"
    last = f"{change.layers} layers, {sizes}; rounding changed the weights by {change.error:.2%} (relative L2 norm)"
    if change.output_errors is not None:
        nearest, made = change.output_errors
        last += f", outputs by {made:.2%} ({nearest:.2%} when rounded to nearest)"
    if options.dry_run:
        return Result(report | {"dry_run": True}, f"would write {out}: {last}; nothing written")
    with new_model(out, "export", folder, report) as partial:
        write_quantized(partial, model, config, vocab, step, with_tokenizer(tokenizer), decoder_start_of(folder))
    if text is not None:
        report |= {"before": (before := text.measure(folder)), "after": (after := text.measure(out))}
        last = "\n".join([last, *before_and_after(before, after)])
    next_line = f"next: {use_command(config.head.kind, str(out))}"
    return Result(report, report_text(out, report["files"], last), notes=[next_line])


def _sample_text(folder: Path, config: "ModelConfig", data: Path) -> SampleText:
    if (config.kind, config.head.kind) != ("decoder", "lm"):
        kind = f"of model.kind {config.kind} with a head {config.head.kind}"
        raise UsageError(f"--calibrate reads causal text, and {folder} is {kind}: leave it out to round to nearest")
    return SampleText(folder, data)


def _sample(text: SampleText, model: "Transformer", options: ExportOptions, progress: Progress) -> "Sample":
    """Rows of text for a model, where it is."""
    from hornbook.model.surgery.quantization.quantize import Sample

    rows = text.microbatches(model, options.rows)
    return Sample(rows, options.act_order, lambda done, of: progress("round the weights of blocks", done, of))
