"""`hornbook bench`: what this machine can do, and where the time of a recipe's step goes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, Words, resolve_words, split_target
from hornbook.cli.train.bench_text import machine_text, step_text
from hornbook.errors import UsageError
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.settings.recipe import Recipe

SECONDS = 20.0


def bench(
    words: Words = None,
    *,
    data: Annotated[Path | None, typer.Option(help="A folder written by `hornbook tokenize`; else random tokens.")] = None,
    seconds: Annotated[float, typer.Option(help="Time for the measured steps of a recipe.")] = SECONDS,
    folder: Annotated[Path, typer.Option(help="A folder on the disk to measure.")] = Path(),
    out: Annotated[Path | None, typer.Option(help="Write the measurements to this file too, as JSON.")] = None,
    dry_run: DryRun = False,
) -> Result:
    """Measure this machine, then the step of a recipe: shares of its time, tokens/s, MFU, memory.

    Without a recipe only the machine is measured. The results are kept in the user's cache for the planner and for the
    MFU of runs; each recipe is measured in a fresh process, on its own data or on random tokens.
    """
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds:g}: a time above 0")
    if not folder.is_dir():
        raise UsageError(f"--folder {folder} is no folder: name one on the disk to measure")
    extra = [] if data is None else [f"data.path={data}"]
    target, _ = split_target(words)
    recipe = resolve_words(words, *extra).recipe
    measured = target is not None or data is not None
    if dry_run:
        return _plan(recipe, measured=measured)
    found: dict[str, Any] = {}
    with progress_bar() as progress:
        progress("measure the machine", 0, None)
        found["machine"] = _measure("machine", recipe, folder=str(folder.resolve()))
        if measured:
            progress("measure the step", 0, None)
            found["step"] = _measure("step", recipe, seconds=seconds)
    texts = [machine_text(found["machine"])] + ([step_text(found["step"])] if measured else [])
    return _result(found, "\n\n".join(texts), out)


def _measure(what: str, recipe: "Recipe", **more: Any) -> dict[str, Any]:
    from hornbook.run.diagnose.bench.worker import measure

    return measure(what, recipe, **more)


def _result(found: dict[str, Any], text: str, out: Path | None) -> Result:
    files = [each["file"] for each in found.values() if isinstance(each, dict) and each.get("file")]
    if out is not None:
        from hornbook.run.diagnose.bench.saved import write

        files.append(str(write(out, found, named=True)))
    return Result(found, text, notes=[f"saved in {name}" for name in files])


def _plan(recipe: "Recipe", *, measured: bool) -> Result:
    what = [f"step of {recipe.name}: {recipe.train.batch_tokens:,} tokens, {recipe.parallel.world} ranks"] if measured else []
    lines = ["machine: products by dtype, memory, disk", *what]
    return Result({"measures": lines}, "\n".join(f"would measure the {line}" for line in lines))
