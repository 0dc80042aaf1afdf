"""Names the rank that keeps the others waiting, and the part of a step that takes its time. A pure function of times.

Ranks wait for one another in communication, so only the rest of a step tells them apart: a rank whose own work takes
longer than the median of the others' by the factor `log.slowdown`, in `LASTING` windows in a row, is a straggler. In a
pipeline, stages have different work: a rank is compared with those of its own stage.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hornbook.parallel.traffic.step_clock import PHASES

NAMES = (*PHASES, "host")
"""What a rank's seconds are given for, in this order."""
LASTING = 3
_WAITS = NAMES.index("communication")


@dataclass(frozen=True)
class SlowRank:
    """The rank that works the longest, beside the others of its stage."""

    rank: int
    factor: float
    """Its work over the median of theirs."""
    section: str
    """One of `NAMES`, which makes the largest difference."""
    seconds: float
    """Of this section."""
    usual: float
    """Median of the others."""

    def __str__(self) -> str:
        return f"rank {self.rank} works {self.factor:.1f} x as long as the others"


@dataclass(frozen=True)
class Straggler:
    """What happened, for the console and the ledger."""

    event: ClassVar[str] = "straggler"
    rank: int
    since: int
    """First step of the first slow window; of a recovery, of the first window without."""
    factor: float = 1.0
    section: str = ""
    seconds: float = 0.0
    """Of a step, in this section."""
    usual: float = 0.0
    """Median of the others."""
    ended: bool = False

    def __str__(self) -> str:
        if self.ended:
            return f"rank {self.rank} is as fast as the others again since step {self.since:,}"
        return (
            f"rank {self.rank} is slow since step {self.since:,}: it works {self.factor:.1f} x as long as the others; "
            f"{self.section} {self.seconds:.3g} s of a step, {self.usual:.3g} s on the others"
        )


def slowest(rows: Sequence[Sequence[float]], stages: Sequence[int]) -> SlowRank | None:
    """The rank that works the longest; rows: seconds of each rank by `NAMES`. None where no two ranks share a stage."""
    found = [_beside(rank, rows, stages) for rank in range(len(rows))]
    return max((each for each in found if each is not None), key=lambda each: each.factor, default=None)


def _beside(rank: int, rows: Sequence[Sequence[float]], stages: Sequence[int]) -> SlowRank | None:
    others = [row for other, row in enumerate(rows) if other != rank and stages[other] == stages[rank]]
    if not others:
        return None
    usual = statistics.median(_work(row) for row in others)
    medians = [statistics.median(column) for column in zip(*others, strict=True)]
    sections = [number for number in range(len(NAMES)) if number != _WAITS]
    section = max(sections, key=lambda number: rows[rank][number] - medians[number])
    factor = _work(rows[rank]) / max(usual, 1e-9)
    return SlowRank(rank, factor, NAMES[section], rows[rank][section], medians[section])


def _work(row: Sequence[float]) -> float:
    return sum(row) - row[_WAITS]


class StragglerDetector:
    """Judges the times of one interval after the other."""

    def __init__(self, factor: float, least_seconds: float) -> None:
        """`factor` above 1; intervals are put together until they last `least_seconds`."""
        self._factor, self._least = factor, least_seconds
        self._first, self._steps = 0, 0
        self._sums: list[list[float]] = []
        self._rank: int | None = None
        """The straggler that was told."""
        self._run: list[tuple[int, int | None]] = []
        """First step and slow rank of the newest windows in a row that contradict it alike."""

    def judge(self, first: int, steps: int, rows: Sequence[Sequence[float]], stages: Sequence[int]) -> Straggler | None:
        """A straggler or its end, where this interval of `steps` steps from `first` on settles one."""
        if not self._steps:
            self._first, self._sums = first, [[0.0] * len(NAMES) for _ in rows]
        self._steps += steps
        self._sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(self._sums, rows, strict=True)]
        if max(sum(row) for row in self._sums) < self._least:
            return None
        found, first, steps = slowest(self._sums, stages), self._first, self._steps
        self._steps = 0
        rank = found.rank if found is not None and found.factor >= self._factor else None
        if rank == self._rank:
            self._run = []
            return None
        self._run = [each for each in self._run if each[1] == rank] + [(first, rank)]
        if len(self._run) < LASTING:
            return None
        since, before = self._run[0][0], self._rank
        self._rank, self._run = rank, []
        if found is None or rank is None:
            return None if before is None else Straggler(before, since, ended=True)
        return Straggler(rank, since, found.factor, found.section, found.seconds / steps, found.usual / steps)
