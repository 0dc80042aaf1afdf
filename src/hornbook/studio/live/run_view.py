"""The JSON that the dashboard shows of runs, read from their directories alone: of dead runs as of living ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hornbook.errors import HornbookError, UsageError
from hornbook.files.filesystem import is_folder, list_folder
from hornbook.files.journal import current_branch, finite, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import Summary, evaluations, find_runs, metrics_of, summarize
from hornbook.studio.live.metric_lines import newest_lines, record_of, sampled_lines

SPARK = 60
"""Points of a small curve."""
EVENTS = 400
"""Newest records of the ledger that are shown."""
SAMPLES, TEXT = 5, 4_000
"""Newest samples that are shown, and characters of each."""
ROWS = 200
"""Moments of the heat strip of layers."""
_PLACE = ("kind", "attempt", "step", "tokens", "time")
_UNSHOWN = {*_PLACE, "prev", "sha", "recipe", "environment", "argv", "manifest", "tensors", "metrics", "sources", "all"}
_UNSHOWN |= {"rows", "whole"}


class Runs:
    """The runs in some folders, by the names under which pages show them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)

    def all(self) -> dict[str, RunDir]:
        """Name -> run, as they are now; of two runs of one name the second has its folder in its name."""
        found = dict[str, RunDir]()
        for folder in self._folders:
            for run in find_runs(folder):
                name = run.name if run.name not in found else f"{run.path.resolve().parent.name}~{run.name}"
                found.setdefault(name, run)
        return found

    def get(self, name: str) -> RunDir:
        """UsageError where there is none, or none any more."""
        run = self.all().get(name)
        if run is None:
            raise UsageError(
                f"there is no run {name!r} in {', '.join(map(str, self._folders))}: it was deleted, or moved"
            )
        return run

    def rows(self) -> list[dict[str, Any]]:
        """A row of the table for each run, and the course of its loss."""
        rows = [(name, run, summarize(run)) for name, run in self.all().items()]
        return [{**_summary(found), "name": name, "spark": spark(run)} for name, run, found in rows]


def _summary(found: Summary) -> dict[str, Any]:
    total = found.total_tokens
    done = min(1.0, found.tokens / total) if total else None
    return finite({**asdict(found), "done": done})


def spark(run: RunDir, points: int = SPARK) -> list[float]:
    """Losses at some steps spread over a run, from as many lines of its file."""
    steps = _steps(run, lambda file, size: sampled_lines(file, 0, size, points))
    losses = [record.get("loss") for record in steps]
    return [float(loss) for loss in losses if isinstance(loss, int | float) and math.isfinite(loss)]


def newest_steps(run: RunDir) -> list[dict[str, Any]]:
    """The last few records of steps; none where nothing can be read."""
    return _steps(run, lambda file, size: [line for _, line in newest_lines(file, 0, size)])


def _steps(run: RunDir, lines_of: Callable[[Any, int], list[bytes]]) -> list[dict[str, Any]]:
    """The records of steps in some lines of a run's file; none where nothing can be read."""
    try:
        with run.metrics.open("rb") as file:
            records = [record_of(line) for line in lines_of(file, file.seek(0, 2))]
            return current_branch(record for record in records if record is not None)
    except (OSError, HornbookError):
        return []


def describe(run: RunDir) -> dict[str, Any]:
    """Everything about a run but its curves."""
    problems = list[str]()
    ledger = _try(problems, "events.jsonl", lambda: list(read_records(run.events)), [])
    scored = _try(problems, "evals", lambda: evaluations(run), [])
    plan = next((record for record in reversed(ledger) if record.get("kind") == "plan"), None)
    return finite(
        {
            **_summary(summarize(run)),
            "events": [_event(record) for record in ledger[-EVENTS:]],
            "more_events": max(0, len(ledger) - EVENTS),
            "held_out": _held_out(scored),
            "plan": plan and {key: plan.get(key) for key in plan if key.startswith(("predicted", "measured"))},
            "samples": _samples(run),
            "incidents": [path.name for path in _files(run.incidents)],
            "problems": problems,
        }
    )


def _try(problems: list[str], what: str, read: Any, default: Any) -> Any:
    try:
        return read()
    except (HornbookError, OSError, LookupError, TypeError, ValueError) as error:
        problems.append(f"{what}: {error}")
        return default


def _event(record: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: value for key, value in record.items() if key not in _UNSHOWN and value not in (None, "", [], {})}
    if record.get("kind") == "evaluation":  # of the newest weights, on some rows or on all
        facts |= metrics_of((record.get("whole") or record).get("all", {}))
    return {key: record.get(key) for key in _PLACE} | {"facts": facts}


def _held_out(scored: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Metric -> {"x": steps, "y": values} over all sources together, or over the one that there is."""
    series = dict[str, dict[str, list[float]]]()
    for record in scored:
        for metric, value in metrics_of(record.get("all", {})).items():
            if isinstance(value, int | float):
                row = series.setdefault(metric, {"x": [], "y": []})
                row["x"].append(record["step"])
                row["y"].append(value)
    return series


def _files(folder: Path) -> list[Path]:
    return list_folder(folder) if is_folder(folder) else []


def _samples(run: RunDir) -> list[dict[str, str]]:
    files = [path for path in _files(run.samples) if not path.name.startswith(".")]
    return [
        {"name": path.name, "text": path.read_bytes()[: 4 * TEXT].decode(errors="replace")[:TEXT]}
        for path in files[: -SAMPLES - 1 : -1]
    ]


def layers(run: RunDir) -> dict[str, Any]:
    """Statistics of layers over the run: names, steps, and for each statistic a row of values for each step."""
    records = [record for record in current_branch(read_records(run.statistics)) if record.get("layers")]
    if not records:
        return {"steps": [], "layers": [], "statistics": {}}
    stride = -(-len(records) // ROWS)
    records = records[::-1][::stride][::-1]
    names = records[-1]["layers"]
    same = [record for record in records if record["layers"] == names]
    kinds = [key for key, value in same[-1].items() if isinstance(value, list) and len(value) == len(names)]
    return finite(
        {
            "steps": [record["step"] for record in same],
            "layers": names,
            "statistics": {
                key: [record.get(key) for record in same] for key in kinds if key not in ("layers", "blocks")
            },
        }
    )


def settings(run: RunDir) -> list[dict[str, str]]:
    """The recipe's settings with their origins, as recipe.toml has them, and what was changed since."""
    from hornbook.run.ledger.ledger import read_past
    from hornbook.settings.show import toml_value

    rows, section = list[dict[str, str]](), ""
    for line in run.recipe.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[] ") + "."
        elif " = " in line:
            key, _, rest = line.partition(" = ")
            value, mark, origin = rest.rpartition(" # ")
            value, origin = (value, origin) if mark else (rest, "")
            rows.append({"key": section + key.strip(), "value": value.strip(), "origin": origin})
    changed = {change.key: (change.new, made.step) for made in read_past(run).interventions for change in made.changes}
    for row in rows:
        if row["key"] in changed:
            new, step = changed[row["key"]]
            row |= {"value": toml_value(new), "origin": f"told at step {step:,}"}
    return rows
