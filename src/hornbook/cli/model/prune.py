"""`hornbook prune`: a smaller model from a larger one, with loss, size and speed of both."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hornbook.cli.model.out_folder import check_free, new_model, report_text, tell_left_out, with_tokenizer
from hornbook.cli.model.sample_text import SampleText, before_and_after
from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, Target
from hornbook.errors import UsageError, quoted
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.model.config.model_config import ModelConfig
    from hornbook.model.surgery.prune import Importance, Stream
    from hornbook.model.surgery.sparsity import Pattern


def prune(
    target: Target,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; new or empty.")],
    heads: Annotated[int | None, typer.Option(help="Query heads that each layer keeps.")] = None,
    hidden: Annotated[int | None, typer.Option(help="MLP channels that each layer keeps.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers that stay.")] = None,
    sparse: Annotated[
        str | None, typer.Option(help="Set single weights to 0: 2:4 keeps two of four neighbours, 0.5 is a share.")
    ] = None,
    score: Annotated[
        Literal["wanda", "magnitude"],
        typer.Option(help="What weights --sparse keeps: by size times the norm of their input, or by size."),
    ] = "wanda",
    data: Annotated[
        Path | None, typer.Option(help="A folder written by `hornbook tokenize`, instead of the run's own.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of training text that importance, or --score wanda, is measured on.")
    ] = 64,
    dry_run: DryRun = False,
) -> Result:
    """Write a smaller model: the heads, MLP channels and layers that matter most for a text, as an ordinary folder.

    Training heals it, best with the larger model as teacher: `hornbook train RECIPE --from DIR
    --train.loss.teacher.kind top --train.loss.teacher.path RUN`.
    """
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.model.surgery.prune import choose, pruned, whole
    from hornbook.model.surgery.prune import prune as cut
    from hornbook.model.surgery.sparsity import parse_pattern
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    if heads is None and hidden is None and layers is None and sparse is None:
        raise UsageError("there is nothing to take out: give --heads, --hidden, --layers or --sparse")
    pattern, folder = None if sparse is None else parse_pattern(sparse), checkpoint_path(target)
    old, vocab, stream, tokenizer = read_merged(folder)
    new = pruned(old, heads, hidden, layers)
    check_free(out)
    text = SampleText(folder, data)
    report: dict[str, Any] = {"source": str(folder), "out": str(out), "model": new.model_dump(mode="json")}
    if dry_run:
        return Result(report | {"dry_run": True}, f"would write {out}: {_change(old, new)}; nothing written")
    kept = whole(old) if new == old else choose(_importance(text, folder, rows), new)
    tensors = cut(stream, old, kept)
    tell_left_out(folder, report)
    report |= {"layers": kept.layers, "before": text.measure(folder)}
    with new_model(out, "prune", folder, report) as partial:
        if pattern is not None:
            tensors, report["zeros"] = _sparse(text, new, vocab, tensors, pattern, rows if score == "wanda" else 0)
        write_hf(partial, tensors, new, vocab, with_tokenizer(tokenizer), decoder_start=decoder_start_of(folder))
    report["after"] = text.measure(out)
    lines, notes = before_and_after(report["before"], report["after"]), []
    if new.layers < old.layers:
        lines.append(f"layers kept: {', '.join(map(str, kept.layers))}")
    if pattern is not None:
        lines.append(f"{report['zeros']:.1%} of the weights of linear layers are 0")
        notes.append(f"next: hornbook train RECIPE --from {quoted(out)} --surgery sparse  (what is 0 stays so)")
    return Result(report, report_text(out, report["files"], "\n".join(lines)), notes=notes)


def _change(old: "ModelConfig", new: "ModelConfig") -> str:
    """Sizes before and after."""
    kinds = f"layers {old.layers} -> {new.layers}, heads {old.heads} -> {new.heads}"
    return f"{kinds}, MLP channels {old.hidden} -> {new.hidden}"


def _sparse(
    text: SampleText, config: "ModelConfig", vocab: int, tensors: "Stream", pattern: "Pattern", rows: int
) -> "tuple[Stream, float]":
    """Parameters of a model with zeros, and their share; rows: of text that inputs are measured on, 0 for none."""
    from hornbook.model.build_model import build_model
    from hornbook.model.surgery.operate import fill
    from hornbook.model.surgery.sparsity import sparsify

    model = fill(build_model(config, vocab, "meta"), tensors, None, device=text.device)
    with progress_bar() as progress:
        microbatches = text.microbatches(model, rows) if rows else None
        zeros = sparsify(model, pattern, microbatches, lambda done, of: progress("set weights to 0", done, of))
    return ((name, each.detach().cpu()) for name, each in model.named_parameters()), zeros


def _importance(text: SampleText, folder: Path, rows: int) -> "Importance":
    """Of the parts of a model, on the first rows of training text."""
    from hornbook.model.surgery.prune import Meter

    engine, config = text.engine(folder)
    with Meter(engine.model, config) as meter, progress_bar() as progress:
        for number, batch in enumerate(text.batches(rows)):
            progress("measure importance", number, rows)
            engine.forward_backward([batch], float(batch.weights.sum()))
            meter.take()
    return meter.importance()
