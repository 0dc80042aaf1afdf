"""`hornbook data RUN@STEP | where | remove`: data and training joined, in both directions."""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hornbook.cli.runs import columns, existing_run
from hornbook.cli.shell import Json, answer
from hornbook.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from hornbook.data.loader import Loader
    from hornbook.data.tracing import Found, Learned
    from hornbook.rundir import RunDir


class _ByPlace(TyperGroup):
    """A first word that is no verb of the group, but has an @ in it, is a place in a run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """`RUN@STEP` stands for `documents RUN@STEP`."""
        if args and args[0] not in self.commands and "@" in args[0]:
            args = ["documents", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_ByPlace,
    help="`hornbook data RUN@STEP` names the documents that a step learned from; `where` and `remove` go back.",
    no_args_is_help=True,
    add_completion=False,
)

Runs = Annotated[
    Path | None, typer.Option("--runs", metavar="FOLDER", help="A run or a folder of runs; HORNBOOK_RUNS, else ./runs.")
]


@app.command()
def documents(
    place: Annotated[str, typer.Argument(metavar="RUN@STEP", help="A run and a step that it has done.")],
    as_json: Json = False,
) -> None:
    """Name the documents that a step learned from."""
    from hornbook.runstatus import steps_that_count

    path, _, step = place.rpartition("@")
    if not path or not step.isdecimal():
        raise UsageError(f"{place!r} is no RUN@STEP, such as runs/mine@100")
    run = existing_run(Path(path))
    record = next((record for record in steps_that_count(run) if record["step"] == int(step)), None)
    if record is None:
        raise UsageError(f"{path} has no step {step} in its metrics")
    loader = _loader(run)
    samples = _samples(_windows(run), record)
    found = [(sample, reference) for sample in samples for reference in loader.documents(sample)]
    if (again := _token_hash(loader, samples)) != record["token_hash"]:
        raise IntegrityError(f"step {step} had tokens {record['token_hash']}, the data gives {again}: it was changed")
    value = {
        "step": record["step"],
        "token_hash": record["token_hash"],
        "documents": [{"sample": sample, **asdict(reference)} for sample, reference in found],
    }
    rows = [(str(s), r.source, r.id, r.origin, f"{r.start:,}", f"{r.length:,}") for s, r in found]
    answer(value, columns([("sample", "source", "id", "origin", "from", "tokens"), *rows]), as_json=as_json)


@app.command()
def where(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id or origin (path:row) of a document.")],
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Say which steps of which runs learned from a document."""
    from hornbook.data.tracing import all_streams, find_documents, positions_of_documents

    found: dict[str, Any] = {}
    for run in _runs(runs):
        loader = _loader(run)
        here = find_documents(all_streams(loader.index), name)
        if here:
            learned = _learned(run)
            seen = learned.step_of(positions_of_documents(loader.index, here, learned.end))
            found[str(run.path)] = {
                "documents": [asdict(each) for each in here],
                "steps": sorted({step for step in seen.tolist() if step >= 0}),
                "runs_on_to": int(learned.steps[-1]) if len(learned.steps) else 0,
            }
    if not found:
        raise UsageError(f"no run in {_folder(runs)} has a document with the id or origin {name!r} in its data")
    answer({"name": name, "runs": found}, "\n".join(_where_lines(found)), as_json=as_json)


def _where_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for run, each in found.items():
        steps = each["steps"]
        held = {document["split"] for document in each["documents"]} == {"validation"}
        seen = f"steps {_ranges(steps)}" if steps else "never seen"
        lines.append(f"{run}: {'held out for validation' if held else seen} (of {each['runs_on_to']:,} steps)")
        lines += [f"  {d['source']}  {d['id']}  {d['origin']}  {d['split']}" for d in each["documents"]]
    return lines


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="SOURCE|ID", help="A source, or id or origin of a document.")],
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Name every checkpoint that learned from a source or a document, those of later runs included.

    Nothing is deleted: what is named has to be trained again without it.
    """
    firsts: dict[RunDir, int] = {}
    known, all_runs = False, _runs(runs)
    for run in all_runs:
        first, here = _first_step(run, name)
        known |= here
        if first is not None:
            firsts[run] = first
    if not known:
        raise UsageError(f"no run in {_folder(runs)} has a source or a document {name!r} in its data")
    _add_descendants(firsts, all_runs)
    touched = {str(run.path): [str(path) for path in _checkpoints(run, first)] for run, first in firsts.items()}
    value = {"name": name, "runs": [{"run": run, "checkpoints": paths} for run, paths in touched.items()]}
    lines = [
        f"{run}: {len(paths)} checkpoints\n" + "\n".join(f"  {path}" for path in paths)
        for run, paths in touched.items()
    ]
    advice = f"train again without it: `--data.weights.{name} 0` for a source, or leave it out of `hornbook prepare`"
    text = "\n".join([*lines, advice]) if touched else f"no run in {_folder(runs)} has learned from {name}"
    answer(value, text, as_json=as_json)


def _first_step(run: "RunDir", name: str) -> tuple[int | None, bool]:
    """(the first step that learned from a source or document, or None; whether the run's data knows it)."""
    from hornbook.data.tracing import all_streams, find_documents, first_step, positions_of_documents

    loader, learned = _loader(run), _learned(run)
    if name in loader.corpus.train:
        return first_step(loader.index, name, learned), True
    here: list[Found] = find_documents(all_streams(loader.index), name)
    steps = learned.step_of(positions_of_documents(loader.index, here, learned.end))
    return next((step for step in steps.tolist() if step >= 0), None), bool(here)


def _checkpoints(run: "RunDir", first: int) -> list[Path]:
    from hornbook.run.commit import list_checkpoints, step_of

    return [path for path in reversed(list_checkpoints(run.checkpoints)) if (step_of(path) or 0) >= first]


def _add_descendants(firsts: "dict[RunDir, int]", runs: "Sequence[RunDir]") -> None:
    """Runs that began from a checkpoint that is touched, also one that is gone since, are so from the first on."""
    from hornbook.run.commit import step_of
    from hornbook.run.ledger import replay
    from hornbook.runstatus import events

    origins = {run: Path(origin["checkpoint"]) for run in runs if (origin := replay(events(run)).origin) is not None}
    grew = True
    while grew:
        begun = {run.checkpoints.resolve(): first for run, first in firsts.items()}
        new = {
            run: 0
            for run, origin in origins.items()
            if firsts.get(run) != 0 and (step_of(origin) or 0) >= begun.get(origin.parent, math.inf)
        }
        firsts.update(new)
        grew = bool(new)


def _folder(runs: Path | None) -> Path:
    return runs or Path(os.environ.get("HORNBOOK_RUNS", "runs"))


def _runs(runs: Path | None) -> "list[RunDir]":
    from hornbook.runstatus import find_runs

    found = find_runs(_folder(runs))
    if not found:
        raise UsageError(f"there is no run in {_folder(runs)}: name a run or a folder of runs with --runs")
    return found


def _learned(run: "RunDir") -> "Learned":
    """Which positions a run learned from, in which steps."""
    import numpy as np

    from hornbook.data.tracing import Learned, end_of
    from hornbook.journal import current_branch, read_records

    keys = ("attempt", "step", "first_sample", "num_samples")
    windows = _windows(run)
    records = current_branch({key: record[key] for key in keys} for record, _ in read_records(run.metrics))
    spans = ((each["step"], each["first_sample"], each["num_samples"]) for each in records)
    rows = [(step, first, end_of(windows, first, count)) for step, first, count in spans if count]
    steps, firsts, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return Learned(steps, firsts, ends, windows)


def _ranges(steps: Sequence[int]) -> str:
    """`1-3, 7`."""
    starts = [step for number, step in enumerate(steps) if not number or steps[number - 1] != step - 1]
    ends = [step for number, step in enumerate(steps) if number + 1 == len(steps) or steps[number + 1] != step + 1]
    return ", ".join(f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in zip(starts, ends, strict=True))


def _loader(run: "RunDir") -> "Loader":
    from hornbook.data.loader import build_loader
    from hornbook.run.bound import recipe_in_force

    recipe = recipe_in_force(run)
    if recipe.data.path is None:
        raise UsageError(f"{run.recipe} names no data")
    train = recipe.train
    return build_loader(
        recipe.data,
        recipe.data.path,
        sequence=train.sequence,
        micro_batch=train.micro_batch,
        seed=recipe.seed,
        prefetch=False,
    )


def _windows(run: "RunDir") -> Sequence[tuple[int, int]]:
    from hornbook.run.ledger import replay
    from hornbook.runstatus import events

    return replay(events(run)).windows


def _samples(windows: Sequence[tuple[int, int]], record: dict[str, Any]) -> list[int]:
    """Positions of a step: those from its first on that lie in no skipped window."""
    free = (i for i in count(record["first_sample"]) if not any(first <= i < end for first, end in windows))
    return list(islice(free, record["num_samples"]))


def _token_hash(loader: "Loader", samples: list[int]) -> str:
    return loader.index.batch(_array(samples), loader.micro_batch).token_hash


def _array(places: Sequence[int]) -> Any:
    import numpy as np

    return np.array(places, np.int64)
