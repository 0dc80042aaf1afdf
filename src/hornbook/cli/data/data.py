"""`hornbook data RUN@STEP | where | affected`: the documents of a step, and the steps of a document."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hornbook.cli.result import CommandGroup, Result, columns
from hornbook.cli.shell import runs_folder
from hornbook.cli.train.runs import step_place
from hornbook.errors import Exit, HornbookError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import find_runs
from hornbook.run.checkpoints.commit import list_checkpoints, step_of

if TYPE_CHECKING:
    from hornbook.run.doctor.exposure import Exposure


_LISTED = ("where", "affected")


class _ByPlace(TyperGroup):
    """Treats a first word with an @ as the argument of `documents`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Read `RUN@STEP` as `documents RUN@STEP`. Raises UsageError for another unknown word."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            if "@" not in args[0]:
                a_run = (Path(args[0]) / "recipe.toml").is_file()
                hint = f"name a step of the run: {args[0]}@STEP" if a_run else "RUN@STEP, " + ", ".join(_LISTED)
                raise UsageError(f"there is no command {args[0]!r} of `hornbook data`: {hint}")
            args = ["documents", *args]
        return super().resolve_command(ctx, args)


app = CommandGroup(
    cls=_ByPlace,
    help="`hornbook data RUN@STEP` lists the documents of a step; `where` and `affected` find the steps of a document.",
    no_args_is_help=True,
    add_completion=False,
)

Runs = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="A run or a folder of runs; $HORNBOOK_RUNS, or ./runs.")
]


@app.command()
def documents(
    place: Annotated[str, typer.Argument(metavar="RUN@STEP", help="A run and one of its steps.")],
) -> Result:
    """List the documents that a step was trained on."""
    from hornbook.run.doctor.exposure import loader_of, samples_of_step

    run, step = step_place(place)
    loader = loader_of(run)
    read = samples_of_step(run, loader, step)
    found = [(sample, each) for sample in read.positions.tolist() for each in loader.index.documents(sample)]
    value = {
        "step": step,
        "token_hash": read.record["token_hash"],
        "documents": [{"sample": sample, **asdict(reference)} for sample, reference in found],
    }
    rows = [(str(s), r.source, r.id, r.origin, f"{r.start:,}", f"{r.length:,}") for s, r in found]
    return Result(value, columns([("sample", "source", "id", "origin", "from", "tokens"), *rows]))


@app.command()
def where(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id or origin (path:row) of a document.")],
    runs: Runs = None,
) -> Result:
    """Find the steps that were trained on a document, of each run and of the runs it started from.

    Exit code 3 if a run cannot be read, because the answer is then incomplete.
    """
    exposures, unread = _exposures(name, runs)
    found = {run: each for run, each in exposures.items() if each.known}
    if not found and not unread:
        raise UsageError(f"no run in {runs or runs_folder()} has a document with the id or origin {name!r} in its data")
    value = {
        str(run.path): {
            "documents": [asdict(document) for document in each.documents],
            "steps": each.steps,
            "through": [{"run": str(origin.run.path), "steps": origin.steps} for origin in each.origins],
            "unknown": list(each.unknown),
            "runs_on_to": each.last_step,
        }
        for run, each in found.items()
    }
    lines = [line for run, each in found.items() for line in _where_lines(run, each)]
    value = {"name": name, "runs": value, "unreadable": unread}
    return Result(value, "\n".join(lines + _unread(unread)), _code(unread))


def _where_lines(run: RunDir, each: "Exposure") -> list[str]:
    held = {document.split for document in each.documents} == {"validation"}
    seen = ["held out for validation"] if held else [f"steps {_ranges(each.steps)}"] if each.steps else []
    seen += [f"inherited from {origin.run.path}, {_steps(origin.steps)}" for origin in each.origins]
    words = "; ".join([*(seen or ["not in its own steps" if each.unknown else "never seen"]), *_began(each)])
    lines = [f"{run.path}: {words} (of {each.last_step:,} steps)"]
    return lines + [f"  {d.source}  {d.id}  {d.origin}  {d.split}" for d in each.documents]


def _began(each: "Exposure") -> list[str]:
    return [f"it started from {text}" for text in each.unknown]


def _steps(steps: Sequence[int]) -> str:
    return f"{'step' if len(steps) == 1 else 'steps'} {_ranges(steps)}"


@app.command()
def affected(
    name: Annotated[str, typer.Argument(metavar="SOURCE|ID", help="A source, or the id or origin of a document.")],
    runs: Runs = None,
) -> Result:
    """List all checkpoints that were trained on a source or a document, also those of runs started from them.

    Nothing is changed: train these again without it. Exit code 3 if a run cannot be read.
    """
    exposures, unread = _exposures(name, runs)
    if not unread and not any(each.known for each in exposures.values()):
        raise UsageError(f"no run in {runs or runs_folder()} has a source or a document {name!r} in its data")
    touched = {run: (each, each.first) for run, each in exposures.items() if each.first is not None}
    rows = [(str(run.path), [str(path) for path in _checkpoints(run, first)]) for run, (_, first) in touched.items()]
    value = {"name": name, "runs": [{"run": run, "checkpoints": paths} for run, paths in rows], "unreadable": unread}
    lines = [f"{run}: {len(paths)} checkpoints\n" + "\n".join(f"  {path}" for path in paths) for run, paths in rows]
    began = [f"{run.path}: {text}" for run, each in exposures.items() if each.first is None for text in _began(each)]
    text = (
        "\n".join([*lines, _advice(name, exposures)])
        if rows
        else f"no run in {runs or runs_folder()} was trained on {name}"
    )
    return Result(value, "\n".join([text, *began, *_unread(unread)]), _code(unread))


def _advice(name: str, exposures: "Mapping[RunDir, Exposure]") -> str:
    from hornbook.text.refinery.exclusions import qualified

    documents = [document for each in exposures.values() for document in each.documents]
    if not documents:
        return f"train again without it: `--data.weights.{name} 0`, with weights for the other sources"
    ids = sorted({qualified(document.source, document.id) for document in documents})
    word = shlex.quote(json.dumps(ids) if len(ids) > 1 or any(mark in ids[0] for mark in ',"[]') else ids[0])
    return f"prepare again without it, into a new folder: `--text.exclude {word}`; then tokenize and train on that"


def _code(unread: Mapping[str, str]) -> Exit:
    return Exit.INTEGRITY if unread else Exit.DONE


def _unread(unread: Mapping[str, str]) -> list[str]:
    return [f"{run}: unknown, because it cannot be read: {problem}" for run, problem in unread.items()]


def _exposures(name: str, folder: Path | None) -> "tuple[dict[RunDir, Exposure], dict[str, str]]":
    """(exposure of each run to a document or source; run -> problem of the unreadable runs)."""
    from hornbook.run.doctor.exposure import Tracer

    folder = folder or runs_folder()
    runs = find_runs(folder)
    if not runs:
        raise UsageError(f"{folder} holds no run: name a run or a folder of runs with --runs")
    tracer, found, unread = Tracer(name, runs), {}, {}
    for run in runs:
        try:
            found[run] = tracer.exposure(run)
        except (HornbookError, OSError, LookupError, TypeError, ValueError) as error:
            unread[str(run.path)] = str(error) if isinstance(error, HornbookError | OSError) else repr(error)
    return found, unread


def _checkpoints(run: RunDir, first: int) -> list[Path]:
    return [path for path in reversed(list_checkpoints(run.checkpoints)) if (step_of(path) or 0) >= first]


def _ranges(steps: Sequence[int]) -> str:
    """`1-3, 7`."""
    starts = [step for number, step in enumerate(steps) if not number or steps[number - 1] != step - 1]
    ends = [step for number, step in enumerate(steps) if number + 1 == len(steps) or steps[number + 1] != step + 1]
    return ", ".join(f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in zip(starts, ends, strict=True))
