"""`hornbook prune`: a smaller model from a larger one, with loss, size and speed of both."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.model.out_folder import check_free, new_model, report_text, tell_left_out, with_tokenizer
from hornbook.cli.model.sample_text import SampleText, before_and_after
from hornbook.cli.result import Result
from hornbook.cli.shell import Target
from hornbook.errors import UsageError
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.model.surgery.prune import Importance


def prune(
    target: Target,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; new or empty.")],
    heads: Annotated[int | None, typer.Option(help="Query heads that each layer keeps.")] = None,
    hidden: Annotated[int | None, typer.Option(help="MLP channels that each layer keeps.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers that stay.")] = None,
    sparse: Annotated[bool, typer.Option("--sparse", help="Set two of four neighbouring weights to 0 (2:4).")] = False,
    data: Annotated[
        Path | None, typer.Option(help="A folder written by `hornbook tokenize`, instead of the run's own.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of training text that importance is measured on.")] = 64,
) -> Result:
    """Write a smaller model: the heads, MLP channels and layers that matter most for a text, as an ordinary folder.

    Training heals it, best with the larger model as teacher: `hornbook train RECIPE --from DIR
    --train.loss.teacher.kind top --train.loss.teacher.path RUN`.
    """
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.model.surgery.prune import choose, pruned, sparsify
    from hornbook.model.surgery.prune import prune as cut
    from hornbook.run.checkpoints.path import checkpoint_path

    if heads is None and hidden is None and layers is None and not sparse:
        raise UsageError("there is nothing to take out: give --heads, --hidden, --layers or --sparse")
    folder = checkpoint_path(target)
    old, vocab, stream, tokenizer = read_merged(folder)
    new = pruned(old, heads, hidden, layers)
    check_free(out)
    text = SampleText(folder, data)
    kept = choose(_importance(text, folder, rows), new)
    before = text.measure(folder)
    tensors = cut(stream, old, kept)
    report: dict[str, Any] = {"source": str(folder), "out": str(out), "model": new.model_dump(mode="json")}
    tell_left_out(folder, report)
    report |= {"layers": kept.layers, "before": before}
    with new_model(out, "prune", folder, report) as partial:
        values = sparsify(tensors) if sparse else tensors
        write_hf(partial, values, new, vocab, with_tokenizer(tokenizer), decoder_start=decoder_start_of(folder))
    report["after"] = after = text.measure(out)
    lines = before_and_after(before, after)
    lines.append(f"layers kept: {', '.join(map(str, kept.layers))}")
    return Result(report, report_text(out, report["files"], "\n".join(lines)))


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
