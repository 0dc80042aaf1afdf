"""`hornbook runs ls | show | compare`: the status and the results of runs, read from their directories."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hornbook.cli.result import CommandGroup, Result, columns
from hornbook.cli.shell import runs_folder
from hornbook.cli.train.plot import plot
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.filesystem import require_local
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import (
    Summary,
    coverage,
    evaluations,
    events,
    find_runs,
    fullest,
    metrics_of,
    steps_that_count,
    summarize,
)
from hornbook.progress import sparkline
from hornbook.run.checkpoints.commit import BEST, list_checkpoints, read_pointer
from hornbook.run.checkpoints.manifest import read_manifest

app = CommandGroup(help="List, show, compare and plot runs.", no_args_is_help=True, add_completion=False)
app.command("plot")(plot)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
EVENTS_SHOWN = 12
"""The last of the ledger; and before them all of `ASKED`."""
ASKED = ("request", "intervention", "activation")
"""Kinds of events that answer `hornbook tell`."""
_HEADER = ("run", "status", "step", "tokens", "done", "loss", "heartbeat", "held out")


@app.command("ls")
def list_runs(
    folder: Annotated[Path | None, typer.Argument(help="Folder of runs; by default $HORNBOOK_RUNS, or ./runs.")] = None,
) -> Result:
    """List the runs in a folder, with their status."""
    place = folder or runs_folder()
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    rows = [summarize(run) for run in find_runs(place)]
    value = {"runs": [asdict(row) for row in rows]}
    text = columns([_HEADER, *(_row(row) for row in rows)]) if rows else f"no runs in {place}"
    return Result(value, text)


@app.command()
def show(run: Run) -> Result:
    """Show one run: status, loss, validation, checkpoints and events."""
    directory = RunDir(run).must_exist()
    summary, steps = summarize(directory), steps_that_count(directory)
    saved, ledger = [_checkpoint(path) for path in list_checkpoints(directory.checkpoints)], events(directory)
    value = {
        **asdict(summary),
        "steps": len(steps),
        "evaluations": evaluations(directory),
        "checkpoints": saved,
        "events": ledger,
    }
    lines = _facts(summary)
    if losses := _losses(steps):
        lines.append(f"loss        {losses[0]:.4f} {sparkline(losses)} {losses[-1]:.4f}")
    if value["evaluations"]:
        last = value["evaluations"][-1]
        found = fullest(last)
        for source, score in [*found["sources"].items(), ("all", found["all"])]:
            on = f" on {coverage(score)}" if coverage(score) else ""
            lines.append(f"held out    {source}: {_named(metrics_of(score))}{on} (step {last['step']:,})")
    lines += [f"checkpoint  {row['name']}  {row['bytes'] / 1e6:,.1f} MB{row['mark']}" for row in saved]
    lines += [f"event       {_event(record)}" for record in _shown(ledger)]
    return Result(value, "\n".join(lines))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Two or more run directories.")],
) -> Result:
    """Compare runs: the settings that differ, and the results."""
    from hornbook.run.checkpoints.bound import recipe_in_force

    if len(runs) < 2:
        raise UsageError("name at least two runs: hornbook runs compare RUN_A RUN_B")
    directories = [RunDir(path).must_exist() for path in runs]
    settings = different_settings([recipe_in_force(directory).model_dump(mode="json") for directory in directories])
    metrics = [_measurements(directory) for directory in directories]
    held_out, note = _held_out(directories)
    metrics = [each | held for each, held in zip(metrics, held_out, strict=True)]
    names = [str(path) for path in runs]
    value = {"runs": names, "settings": settings, "figures": metrics, "note": note}
    table = [("setting", *names), *((key, *map(_text, values)) for key, values in settings.items())]
    lines = [columns(table) if settings else "the settings are equal", ""]
    rows = [(key, *(_text(each.get(key)) for each in metrics)) for key in metrics[0]]
    lines += [columns([("figure", *names), *rows]), *([note] if note else []), ""]
    for directory, name in zip(directories, names, strict=True):
        lines.append(f"{sparkline(_losses(steps_that_count(directory)))}  {name} ({summarize(directory).status})")
    return Result(value, "\n".join(lines))


def different_settings(recipes: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Dotted keys that differ between recipes -> the value of each recipe (None if it has none)."""
    flat = [_flatten(recipe) for recipe in recipes]
    keys = sorted({key for recipe in flat for key in recipe})
    rows = {key: [recipe.get(key) for recipe in flat] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def step_place(place: str) -> tuple[RunDir, int]:
    """The run and the step that `RUN@STEP` names. Raises UsageError."""
    path, _, step = place.rpartition("@")
    if not path or not (step.isascii() and step.isdecimal()):
        raise UsageError(f"{place!r}: write RUN@STEP, such as runs/mine@100")
    return RunDir(Path(require_local(path))).must_exist(), int(step)


def _row(row: Summary) -> tuple[str, ...]:
    done = f"{row.tokens / row.total_tokens:.0%}" if row.total_tokens else "-"
    age = "-" if row.heartbeat_seconds is None else f"{row.heartbeat_seconds:,.0f} s ago"
    if row.problem:
        return (row.name, row.status, "-", "-", "-", "-", "-", row.problem)
    metrics = {name: value for name, value in row.held_out.items() if name != "loss"} or row.held_out
    held_out = f"{_named(metrics)}{' on ' * bool(row.coverage)}{row.coverage}" if metrics else "-"
    return (row.name, row.status, f"{row.step:,}", f"{row.tokens:,}", done, _text(row.loss), age, held_out)


def _named(metrics: Mapping[str, float]) -> str:
    """`2.1320 bits per byte`, or the metrics of labels."""
    words = []
    for name, value in metrics.items():
        spaced = name.replace("_", " ")
        words.append(f"{_text(value)} {spaced}" if name == "bits_per_byte" else f"{spaced} {_text(value)}")
    return ", ".join(words)


def _facts(row: Summary) -> list[str]:
    facts = [f"{name:<10}  {word}" for name, word in zip(_HEADER, _row(row), strict=True)]
    return [*facts, f"attempt     {row.attempt}"]


def _held_out(runs: Sequence[RunDir]) -> tuple[list[dict[str, Any]], str]:
    """Validation metrics of each run on the rows that all runs scored, and a note if there are none.

    The last ones are on as many rows as all have in common; the lowest loss is on the rows scored along the run.
    """
    scored = [_by_rows(evaluations(run)) for run in runs]
    common = [rows for rows in scored[0] if rows is not None and all(rows in each for each in scored)]
    if not common:
        empty = {"lowest validation loss": None, "last validation loss": None}
        note = "the runs scored no validation rows in common: `hornbook eval RUN --data FILES` scores each on one text"
        return [dict(empty) for _ in runs], note if any(scored) else ""
    widest = max(common, key=lambda rows: scored[0][rows][-1]["read"])
    along = max(common, key=lambda rows: len(scored[0][rows]))
    found = []
    for each in scored:
        last = metrics_of(each[widest][-1])
        metrics: dict[str, Any] = {"lowest validation loss": min(score["loss"] for score in each[along])}
        metrics["lowest of"] = coverage(each[along][-1])
        for name, value in last.items():
            metrics[f"last {'validation loss' if name == 'loss' else name.replace('_', ' ')}"] = value
        found.append(metrics | {"last of": coverage(each[widest][-1])})
    return found, ""


def _by_rows(evaluated: Sequence[Mapping[str, Any]]) -> dict[str | None, list[dict[str, Any]]]:
    """Identity of the scored rows -> scores over all sources, in the order of steps."""
    found: dict[str | None, list[dict[str, Any]]] = {}
    for evaluation in evaluated:
        for each in (evaluation, evaluation.get("whole")):
            if each is not None:
                found.setdefault(each.get("rows"), []).append(each["all"])
    return found


def _shown(ledger: list[dict[str, Any]]) -> list[dict[str, Any]]:
    asked = [record for record in ledger[:-EVENTS_SHOWN] if record["kind"] in ASKED]
    return asked + ledger[-EVENTS_SHOWN:]


def _event(record: dict[str, Any]) -> str:
    words = [f"{key} {record[key]}" for key in ("checkpoint", "reason", "text") if record.get(key)]
    return f"attempt {record['attempt']}  step {record['step']:,}  {record['kind']}  {', '.join(words)}".rstrip()


def _checkpoint(path: Path) -> dict[str, Any]:
    best = read_pointer(path.parent, BEST) == path
    try:
        manifest = read_manifest(path)
    except IntegrityError as error:
        return {"name": path.name, "bytes": 0, "score": None, "best": best, "mark": f"  DAMAGED: {error}"}
    loss = manifest.score.loss if manifest.score is not None else None
    mark = f"  validation loss {loss:.4f}" if loss is not None else ""
    mark += "  best" if best else ""
    return {"name": path.name, "bytes": manifest.total_bytes, "score": loss, "best": best, "mark": mark}


def _measurements(run: RunDir) -> dict[str, Any]:
    steps = steps_that_count(run)
    rates = [step["tokens_per_second"] for step in steps if step.get("tokens_per_second")]
    return {
        "status": summarize(run).status,
        "steps": len(steps),
        "tokens": steps[-1]["tokens"] if steps else 0,
        "last loss": steps[-1]["loss"] if steps else None,
        "tokens per second (median)": sorted(rates)[len(rates) // 2] if rates else None,
        "attempts": max((step["attempt"] for step in steps), default=0),
        "skipped steps": sum(bool(step.get("skipped")) for step in steps),
    }


def _losses(steps: Sequence[dict[str, Any]]) -> list[float]:
    return [step["loss"] for step in steps if step["loss"] is not None]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    inner = [_flatten(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in value.items()]
    return {key: item for part in inner for key, item in part.items()}
