"""Who is mentioned with what in a prepared folder, per source and in all: from the stored counts, no text is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hornbook.text.config.content import CountedMentions, RebalanceConfig
from hornbook.text.config.step import StepConfig
from hornbook.text.refinery.bias.associations import LEAST_EXPECTED, Association, MentionSums, associations, split
from hornbook.text.refinery.bias.rebalance import REASON
from hornbook.text.refinery.pipeline.decide import KEPT

ALL = "all sources"


@dataclass(frozen=True, slots=True)
class SourceMentions:
    """One source, or all."""

    name: str
    documents: int
    """Kept documents."""
    mentions: dict[str, int]
    """Mentions of each group in kept documents."""
    pairs: list[Association]
    """Pairs in kept documents that are frequent enough to be judged, the strongest first."""
    before: dict[tuple[str, str], Association]
    """The same pairs in all documents read; of a step that thins, in kept documents and those that it dropped."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A pair now and before; None where it is too rare to be judged."""

    group: str
    attribute: str
    now: Association | None
    before: Association | None

    @property
    def least(self) -> float:
        """The lower end of its interval, now or before."""
        return max(each.low for each in (self.now, self.before) if each)


@dataclass(frozen=True, slots=True)
class MentionReport:
    """The counts of one step."""

    step: str
    terms: str
    near: str
    """A description of its window."""
    before: str
    """A description of the documents of `SourceMentions.before`."""
    sources: list[SourceMentions]
    """Where there are several, the last is their sum."""


def read_bias(data: Path, configs: Sequence[StepConfig]) -> list[MentionReport]:
    """A report for each step that counts mentions."""
    counting = [config for config in configs if isinstance(config, CountedMentions)]
    return [_report(data, config) for config in counting]


def _report(data: Path, config: CountedMentions) -> MentionReport:
    near = "the sentence" if config.window == "sentence" else f"{config.window} words before and after"
    sums: dict[tuple[str, bool], MentionSums] = {}
    groups, attributes = [], []
    for path in sorted((data / "signals").glob("*.parquet")):
        names = [name for name in pq.read_schema(path).names if name.startswith(f"{config.label}.")]
        groups, attributes = _names(config.label, names)
        for key, counted in _counted(path, config, names):
            sums[key] = sums[key] + counted if key in sums else counted
    sources = sorted({source for source, _ in sums})
    if len(sources) > 1:
        for kept in (False, True):
            sums[ALL, kept] = reduce(add, (sums[source, kept] for source in sources))
        sources.append(ALL)
    parts = [_source(source, sums[source, False], sums[source, True], groups, attributes) for source in sources]
    before = "before it" if isinstance(config, RebalanceConfig) else "as read"
    return MentionReport(config.label, config.terms, near, before, parts)


def standing_out(source: SourceMentions) -> list[Shift]:
    """Pairs that are or were before certainly over-represented, the strongest first."""
    now = {(each.group, each.attribute): each for each in source.pairs}
    keys = dict.fromkeys([*now, *source.before])
    shifts = [Shift(*key, now.get(key), source.before.get(key)) for key in keys]
    return sorted((each for each in shifts if each.least > 0), key=lambda each: -each.least)


def nothing_stands_out(source: SourceMentions) -> str:
    """A sentence that says why no pair is shown."""
    if source.pairs:
        return f"none of the {len(source.pairs)} pairs that are frequent enough to be judged stands out"
    return f"no pair is frequent enough to be judged: {LEAST_EXPECTED:.0f} must be expected, of the other groups too"


def shares(source: SourceMentions) -> str:
    """A phrase that says how often each group is mentioned."""
    total = max(sum(source.mentions.values()), 1)
    return ", ".join(f"{name} {count:,} times ({count / total:.0%})" for name, count in source.mentions.items())


def _names(label: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Groups and attributes from the names of columns: the file of terms may have changed since."""
    parts = [name.removeprefix(f"{label}.").split(".") for name in names]
    groups = [part[0] for part in parts if len(part) == 1]
    return groups, [part[1] for part in parts if len(part) == 2 and part[0] == groups[0]]


def _counted(
    path: Path, config: CountedMentions, names: Sequence[str]
) -> Iterator[tuple[tuple[str, bool], MentionSums]]:
    """Of each row group of a file: (source, False) and the sums before, (source, True) and those of kept documents."""
    thinned = f"{config.name}: {REASON}" if config.name else REASON
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["reason", "source", *names])
            rows = np.stack([table[name].to_numpy() for name in names], axis=1)
            kept = _is(table["reason"], KEPT)
            before = kept | _is(table["reason"], thinned) if isinstance(config, RebalanceConfig) else np.ones_like(kept)
            for source in table["source"].unique().to_pylist():
                here = _is(table["source"], source)
                yield (source, False), MentionSums.of(rows[here & before])
                yield (source, True), MentionSums.of(rows[here & kept])


def _is(column: pa.ChunkedArray, value: str) -> np.ndarray:
    return pc.call_function("equal", [column, value]).to_numpy()


def _source(
    name: str, before: MentionSums, kept: MentionSums, groups: Sequence[str], attributes: Sequence[str]
) -> SourceMentions:
    mentions = dict(zip(groups, split(kept.sums, len(groups))[0].astype(int).tolist(), strict=True))
    earlier = {(each.group, each.attribute): each for each in associations(before, groups, attributes)}
    return SourceMentions(name, kept.documents, mentions, associations(kept, groups, attributes), earlier)
