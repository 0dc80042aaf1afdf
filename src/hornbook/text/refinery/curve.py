"""The cleaning-coverage curve: what stays, and of which sources and languages, as one threshold of one step moves.

From the stored columns alone; no text is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.errors import UsageError
from hornbook.text.config_step import StepConfig
from hornbook.text.decide import KEPT, NOTHING_LEFT
from hornbook.text.refinery.step import Decision
from hornbook.text.refinery.table import Steps, build


@dataclass(frozen=True, slots=True)
class Point:
    """What stays at one value of a threshold, of the documents that come to the step."""

    value: float
    documents: int
    share: float
    bytes: int
    groups: dict[str, float] = field(default_factory=dict)
    """Source, and language where that was measured -> share of its documents that stays."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Columns of the documents that come to a step."""

    columns: dict[str, np.ndarray]
    bytes: np.ndarray
    groups: dict[str, np.ndarray]
    """Name -> bool [rows]."""


def read_signals(data: Path, configs: Sequence[StepConfig], label: str) -> tuple[Decision, Signals]:
    """The step with that name and the columns it needs. Raises UsageError where there is none, or it has no columns."""
    steps = build(configs)
    step = next((each for each in steps.decisions if each.name == label), None)
    if not isinstance(step, Decision):
        known = ", ".join(each.name for each in steps.decisions if isinstance(each, Decision))
        raise UsageError(f"{label!r} is no step of {data} that decides by columns alone: there are {known}")
    languages = [name for name in steps.columns() if name.endswith(".language")]
    names = [*step.needs, "reason", "source", "bytes", *languages]
    paths = sorted((data / "signals").glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(path, columns=list(dict.fromkeys(names))) for path in paths])
    table = table.filter(pa.array(np.isin(table["reason"].to_numpy(), _reach(steps, step))))
    groups = {
        f"{kind} {name}": table[column].to_numpy() == name
        for kind, column in (("source", "source"), *(("language", name) for name in languages))
        for name in table[column].unique().to_pylist()
    }
    columns = {name: table[name].to_numpy() for name in step.needs}
    return step, Signals(columns, table["bytes"].to_numpy(), groups)


def _reach(steps: Steps, step: Decision) -> list[str]:
    """Reasons of documents that come to a step: it drops them, or a later one does, or none."""
    later = steps.decisions[steps.decisions.index(step) :]
    return [KEPT, NOTHING_LEFT, *(reason for each in later for reason in each.reasons)]


def curve(step: Decision, signals: Signals, key: str, values: Sequence[float]) -> list[Point]:
    """A point for each value of `step.config.key`. Raises UsageError where that is no number of the step."""
    found = []
    for value in values:
        kept = type(step)(_with(step.config, key, value)).decide(signals.columns) == 0
        shares = {name: float(kept[mask].mean()) for name, mask in signals.groups.items()}
        share = float(kept.mean()) if len(kept) else 0.0
        found.append(Point(value, int(kept.sum()), share, int(signals.bytes[kept].sum()), shares))
    return found


def numbers(config: StepConfig) -> dict[str, float]:
    """The thresholds of a step: its settings that are numbers."""
    values = {key: getattr(config, key) for key in type(config).model_fields}
    return {key: v for key, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _with(config: Any, key: str, value: float) -> Any:
    if key not in numbers(config):
        raise UsageError(f"step {config.label!r} has no threshold {key!r}: it has {', '.join(numbers(config))}")
    whole = isinstance(getattr(config, key), int) and value == int(value)
    return config.model_copy(update={key: int(value) if whole else value})
