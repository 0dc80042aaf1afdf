"""Where the time of a step goes: seconds by phase, measured in the step itself.

A phase that is entered within another one is taken out of it, so phases never overlap and their sum is at most the wall
time of the step; what is left is the host's: the loop, the inputs of microbatches, the wait for scalars. On a CPU a
change of phase is a look at the clock (under a microsecond). On a GPU it is an event in the stream, which is read once
the step's own wait for the device is over: no wait is added, and an update after that wait counts in the next step.
A phase there lasts until its last kernel ends, idle times between its kernels included.

Communication is the part that computation waits for: sums of gradients that end behind the last backward pass, the
waits of FSDP on a CPU, and collectives in the middle of computing. Under FSDP on a GPU transfers overlap with kernels
on streams of their own; what is not hidden stays with forward and backward. What crosses ranks is counted beside it, by
axes and kind (`hornbook.parallel.traffic.traffic`).
"""

import time
from types import TracebackType
from typing import Any, Literal, Self

import torch

from hornbook.parallel.traffic.traffic import Flow, Kind, Traffic

Phase = Literal["host", "data", "forward", "backward", "communication", "optimizer"]
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "communication", "optimizer")
"""What a step is made of; `host` is what is left of its wall time."""


class StepClock:
    """Seconds of one step at a time, by phase."""

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008 - never changed
        self.cuda = device.type == "cuda"
        """Whether moments are events in the present stream."""
        self.traffic = Traffic(cuda=self.cuda)
        """What crosses ranks."""
        self._stack: list[tuple[Phase, Flow | None]] = []
        """Phases that are open, and of communication what is waited for where that is known."""
        self._marks: list[tuple[Phase, Flow | None, Any]] = []
        """(phase that ends, what it waited for, the moment as an event in the stream)."""
        self._late = list[tuple[Phase, Flow | None, Any]]()
        """Marks that the device had not reached at the last `take`: where an update comes after the step's wait."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._since = 0

    def begin(self) -> None:
        """Begin a step: what collectives of an evaluation took before it counts for nothing."""
        self._marks.clear()
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.traffic.begin()

    def phase(self, name: Phase) -> "_Within":
        """A context whose time counts for `name`, and not for the phase around it."""
        return _Within(self, name)

    def waiting(self, flow: Flow) -> "_Within":
        """A context in which computing waits for what crosses ranks."""
        return _Within(self, "communication", flow)

    def collective(self, axis: str, kind: Kind, sent: float) -> "Collective":
        """A context around a collective that computing waits for, of which this rank sends so many bytes."""
        return Collective(self, (axis, kind), sent)

    def enter(self, name: Phase, flow: Flow | None = None) -> None:
        """Begin a phase; of communication, a wait for `flow`."""
        self._mark()
        self._stack.append((name, flow))

    def leave(self) -> None:
        """End the present phase; the one around it goes on."""
        self._mark()
        self._stack.pop()

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call. A phase that a GPU has not ended yet counts at the next call."""
        for marks in (self._late, self._marks):
            while len(marks) > 1 and marks[1][2].query():
                _, _, start = marks.pop(0)
                phase, flow, end = marks[0]
                self._add(phase, flow, start.elapsed_time(end) / 1e3)
        self._late, self._marks = self._marks, []
        taken, self._seconds = {**self._seconds}, dict.fromkeys(PHASES, 0.0)
        return taken

    def _mark(self) -> None:
        phase, flow = self._stack[-1] if self._stack else ("host", None)
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, flow, event))
            return
        now = time.perf_counter_ns()
        self._add(phase, flow, (now - self._since) / 1e9)
        self._since = now

    def _add(self, phase: Phase, flow: Flow | None, seconds: float) -> None:
        if phase != "host":
            self._seconds[phase] += seconds
        if flow is not None:
            self.traffic.wait(flow, seconds)


class _Within:
    """A phase as a context."""

    __slots__ = ("_clock", "_flow", "_name")

    def __init__(self, clock: StepClock, name: Phase, flow: Flow | None = None) -> None:
        self._clock, self._flow = clock, flow
        self._name: Phase = name

    def __enter__(self) -> Self:
        self._clock.enter(self._name, self._flow)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.leave()


class Collective:
    """A collective as a context."""

    __slots__ = ("_clock", "_end", "_flow", "_sent")

    def __init__(self, clock: StepClock, flow: Flow, sent: float) -> None:
        self._clock, self._flow, self._sent = clock, flow, sent

    def __enter__(self) -> None:
        self._clock.enter("communication", self._flow)
        self._end = self._clock.traffic.launch(*self._flow, self._sent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._clock.leave()
