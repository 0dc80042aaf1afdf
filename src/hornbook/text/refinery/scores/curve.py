"""The cleaning-coverage curve: what is kept, of which sources and languages, as one threshold of a step moves.

Computed from the stored columns; no text is read. Coverage of the vocabulary needs a step that stored a sample of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hornbook.errors import UsageError
from hornbook.text.config.step import StepConfig
from hornbook.text.config.text import KINDS
from hornbook.text.refinery.pipeline.decide import KEPT, NOTHING_LEFT
from hornbook.text.refinery.scores.vocabulary import COUNT, SAMPLE, Coverage, SampledWords, Vocabulary
from hornbook.text.refinery.step import Decision, Steps, build


@dataclass(frozen=True, slots=True)
class Point:
    """What is kept at one value of a threshold, of the documents that reach the step."""

    value: float
    documents: int
    share: float
    bytes: int
    groups: dict[str, float] = field(default_factory=dict)
    """Source, and language where it was measured -> share of its documents that is kept."""
    words: Coverage | None = None
    """Coverage of the vocabulary, where a sample of it was stored."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Columns of the documents that reach a step."""

    columns: dict[str, np.ndarray]
    bytes: np.ndarray
    groups: list[tuple[list[str], np.ndarray]] = field(default_factory=list)
    """By source, and by language where it was measured: the groups' names; int32 [rows], the group of each document."""
    words: SampledWords | None = None


def read_signals(data: Path, configs: Sequence[StepConfig], label: str) -> tuple[Decision, Signals]:
    """The step of that name and the columns it needs. Raises UsageError where there is no such decision."""
    steps = build(configs)
    step = next((each for each in steps.decisions if each.name == label), None)
    if not isinstance(step, Decision):
        known = ", ".join(each.name for each in steps.decisions if isinstance(each, Decision))
        absent = label in KINDS and label not in [config.label for config in configs]
        remedy = "add it to text.steps and prepare again" if absent else f"there are: {known or 'none'}"
        raise UsageError(f"{data} has no step {label} with a threshold: {remedy}")
    return step, read_rows(data, steps, step.needs, _reach(steps, step))


def read_rows(data: Path, steps: Steps, columns: Sequence[str], reasons: Sequence[str]) -> Signals:
    """Columns of the documents that were kept or dropped for one of these reasons; steps: those of the folder."""
    languages = [name for name in steps.columns() if name.endswith(".language")]
    sample = next((each for each in steps.measurers if isinstance(each, Vocabulary)), None)
    words = [f"{sample.name}.{column}" for column in (COUNT, SAMPLE)] if sample else []
    names = list(dict.fromkeys([*columns, "reason", "source", "bytes", *languages, *words]))
    reach = pc.SetLookupOptions(pa.array(reasons))
    noted = SampledWords(sample.config.one_in) if sample else None
    parts = []
    for path in sorted((data / "signals").glob("*.parquet")):
        part = pq.read_table(path, columns=names, read_dictionary=["source", *languages])
        part = part.filter(pc.call_function("is_in", [part["reason"]], reach))
        if noted is not None:
            noted.add(part[words[0]].to_numpy(), part[words[1]].combine_chunks())
        parts.append(part.drop_columns(["reason", *words[1:]]))
    table = pa.concat_tables(parts).unify_dictionaries()
    kinds = (("source", "source"), *(("language", name) for name in languages))
    groups = [_groups(kind, table[column].combine_chunks()) for kind, column in kinds if len(table)]
    return Signals({name: table[name].to_numpy() for name in columns}, table["bytes"].to_numpy(), groups, noted)


def _groups(kind: str, column: Any) -> tuple[list[str], np.ndarray]:
    return [f"{kind} {name}" for name in column.dictionary.to_pylist()], column.indices.to_numpy()


def group_shares(names: list[str], numbers: np.ndarray, kept: np.ndarray) -> dict[str, float]:
    """The share of each group that is kept."""
    all_, stay = (np.bincount(each, minlength=len(names)) for each in (numbers, numbers[kept]))
    return {name: float(part / whole) for name, part, whole in zip(names, stay, all_, strict=True) if whole}


def _reach(steps: Steps, step: Decision) -> list[str]:
    """Reasons of documents that reach a step: its own, those of later steps, and none."""
    later = steps.decisions[steps.decisions.index(step) :]
    return [KEPT, NOTHING_LEFT, *(reason for each in later for reason in each.reasons)]


def curve(step: Decision, signals: Signals, key: str, values: Sequence[float]) -> list[Point]:
    """A point for each value of `step.config.key`. Raises UsageError where the key is no threshold."""
    kept_at = step.sweep(signals.columns, _checked(step, key))
    return [point(signals, kept_at(_as_set(step.config, key, value)), value) for value in values]


def point(signals: Signals, kept: np.ndarray, value: float) -> Point:
    """Count the documents of a mask, bool [rows]; value: the threshold that kept them."""
    shares = {name: share for groups in signals.groups for name, share in group_shares(*groups, kept).items()}
    share = float(kept.mean()) if len(kept) else 0.0
    words = signals.words.coverage(kept) if signals.words else None
    return Point(value, int(kept.sum()), share, int(signals.bytes[kept].sum()), shares, words)


def numbers(config: StepConfig) -> dict[str, float]:
    """The numeric settings of a step; those that are off, at their defaults."""
    fields = type(config).model_fields
    values = {key: getattr(config, key) for key in fields}
    values = {key: fields[key].default if value is None else value for key, value in values.items()}
    return {key: v for key, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def thresholds(step: Decision) -> dict[str, float]:
    """The numeric settings that are compared with columns and do not change how these are measured."""
    return {key: value for key, value in numbers(step.config).items() if not _is_measured(step, key, value)}


def _is_measured(step: Decision, key: str, value: float) -> bool:
    if key in step.fixed:
        return True
    return step.config.model_copy(update={key: _as_set(step.config, key, value + 1)}).build().needs != step.needs


def around(now: float) -> list[float]:
    """Values from 0 to four times the current one."""
    return [float(f"{now * factor:.3g}") for factor in (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 4)]


def _checked(step: Decision, key: str) -> str:
    known = numbers(step.config)
    if key not in known:
        raise UsageError(f"step {step.name!r} has no threshold {key!r}: it has {', '.join(known)}")
    if _is_measured(step, key, known[key]):
        raise UsageError(f"{step.name}.{key} is part of what was measured: prepare again with another value to see it")
    return key


def _as_set(config: StepConfig, key: str, value: float) -> float:
    """An integer where the setting is one."""
    return int(value) if isinstance(numbers(config)[key], int) and value == int(value) else value


_SHOWN = 3
"""Groups shown: those of which least is kept."""


def curve_table(points: Sequence[Point], now: float | None) -> list[tuple[str, ...]]:
    """A header, and a row for each value; `now` is the current one."""
    vocabulary = ("different words", "running words") if any(point.words for point in points) else ()
    return [("value", "documents", "share", "bytes", *vocabulary, "least kept"), *(_row(each, now) for each in points)]


def _row(point: Point, now: float | None) -> tuple[str, ...]:
    least = sorted(point.groups.items(), key=lambda item: item[1])[:_SHOWN]
    return (
        f"{point.value:g}{' (now)' if point.value == now else ''}",
        f"{point.documents:,}",
        f"{point.share:.1%}",
        f"{point.bytes:,}",
        *_words(point),
        ", ".join(f"{name} {share:.0%}" for name, share in least),
    )


def _words(point: Point) -> tuple[str, ...]:
    if (found := point.words) is None:
        return ()
    pairs = ((found.vocabulary, found.vocabulary_error), (found.running, found.running_error))
    return tuple(f"{share:.1%} +-{error * 100:.1f}" for share, error in pairs)
