"""Communication of a step: bytes that this rank sends, and seconds, by the axes that they cross and the kind.

Bytes are those of the algorithms that send least (Chan et al. 2007): of n bytes over p ranks each rank sends
2 (p - 1) / p n in an all-reduce, (p - 1) / p n in an all-gather, a reduce-scatter and an all-to-all. A ring sends
exactly these (`benchmarks.training.all_reduces`); a back-end may choose another algorithm.

Seconds in flight are those in which at least one transfer is under way, from its launch to its end. The step clock adds
those in which computing waits for one. The others are hidden behind computing.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

Kind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]
Flow = tuple[str, Kind]
"""Axes with more than one rank, such as `shard` or `replica+shard`, and the kind of what crosses them."""
Interval = tuple[float, float]
"""Begin and end in seconds of one clock."""
TIMES: Mapping[Kind, int] = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}


def sent_bytes(kind: Kind, size: int, ranks: int) -> float:
    """Bytes that a rank sends: `size` is that of the whole tensor: the sum, what is gathered, what is scattered."""
    return size if kind == "send" else TIMES[kind] * (ranks - 1) / ranks * size


@dataclass(frozen=True)
class Volume:
    """What one rank sent of one kind over some axes."""

    calls: int = 0
    bytes: float = 0.0
    seconds: float = 0.0
    """In flight."""
    waited: float = 0.0
    """Of computing for it."""

    def __add__(self, other: "Volume") -> "Volume":
        return Volume(
            self.calls + other.calls,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
            self.waited + other.waited,
        )


@dataclass(frozen=True)
class TrafficReport:
    """The communication of one rank in some steps."""

    flows: Mapping[Flow, Volume] = field(default_factory=dict)
    seconds: float = 0.0
    """In which anything was in flight."""

    def __add__(self, other: "TrafficReport") -> "TrafficReport":
        flows = dict(self.flows)
        for flow, volume in other.flows.items():
            flows[flow] = flows.get(flow, Volume()) + volume
        return TrafficReport(flows, self.seconds + other.seconds)

    @property
    def waited(self) -> float:
        """Seconds in which computing waited."""
        return sum(volume.waited for volume in self.flows.values())

    @property
    def hidden(self) -> float | None:
        """Share of the seconds in flight that was hidden behind computing; None where nothing was in flight."""
        return max(1 - self.waited / self.seconds, 0.0) if self.seconds else None

    def record(self, steps: int = 1) -> dict[str, Any]:
        """Means over so many steps, as JSON; seconds in flight, `hidden` a share of them."""
        flows = [
            {
                "axis": axis,
                "kind": kind,
                "calls": round(volume.calls / steps, 2),
                "bytes": round(volume.bytes / steps),
                "seconds": round(volume.seconds / steps, 6),
                "waited": round(volume.waited / steps, 6),
            }
            for (axis, kind), volume in sorted(self.flows.items())
        ]
        hidden = None if self.hidden is None else round(self.hidden, 4)
        total = {"seconds": round(self.seconds / steps, 6), "waited": round(self.waited / steps, 6), "hidden": hidden}
        return {**total, "flows": flows}


class Traffic:
    """Counts what crosses ranks, until it is taken: `StepClock` has one."""

    def __init__(self, *, cuda: bool = False) -> None:
        self._cuda = cuda
        self._flows: dict[Flow, Volume] = {}
        self._intervals: list[tuple[Flow, Any, Any]] = []
        """Flow, launch and end: times in nanoseconds, or events in streams."""
        self._origin: Any = None

    def begin(self) -> None:
        """Forget everything: a step begins."""
        self._flows.clear()
        self._intervals.clear()
        self._origin = None

    def count(self, axis: str, kind: Kind, sent: float) -> None:
        """Count one transfer, of which this rank sends so many bytes (`sent_bytes`); none: it only waits."""
        self._add((axis, kind), Volume(int(sent > 0), sent))

    def wait(self, flow: Flow, seconds: float) -> None:
        """Count a wait of computing."""
        self._add(flow, Volume(waited=seconds))

    def launch(self, axis: str, kind: Kind, sent: float) -> Callable[[], None]:
        """Count a transfer that begins now; call the result when it has ended, on any thread.

        On a GPU both are moments of the present stream.
        """
        self.count(axis, kind, sent)
        begun = self._moment()
        return lambda: self._intervals.append(((axis, kind), begun, self._moment()))

    def take(self) -> TrafficReport:
        """What was counted since the last call; on a GPU it waits for the transfers, for which the step has waited."""
        intervals = [(flow, (self._seconds(begun), self._seconds(ended))) for flow, begun, ended in self._intervals]
        flows = {
            flow: replace(volume, seconds=covered(each for name, each in intervals if name == flow))
            for flow, volume in self._flows.items()
        }
        report = TrafficReport(flows, covered(each for _, each in intervals))
        self.begin()
        return report

    def _add(self, flow: Flow, volume: Volume) -> None:
        self._flows[flow] = self._flows.get(flow, Volume()) + volume

    def _moment(self) -> Any:
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._origin = self._origin or event
        return event

    def _seconds(self, moment: Any) -> float:
        if not self._cuda:
            return moment / 1e9
        moment.synchronize()
        return self._origin.elapsed_time(moment) / 1e3


def covered(intervals: Iterable[Interval]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total
