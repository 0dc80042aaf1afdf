"""Where the time of a step goes: seconds by phase, measured in the step itself.

A phase that is entered within another one is taken out of it, so phases never overlap and their sum is at most the wall
time of the step; what is left is the host's: the loop, the inputs of microbatches, the wait for scalars. On a CPU a
change of phase is a look at the clock (under a microsecond). On a GPU it is an event in the stream, which is read once
the step's own wait for the device is over: no wait is added. A phase there lasts until its last kernel ends, idle times
between its kernels included.

Communication is the part that computation waits for: behind the last bucket of DDP, in the waits of FSDP on a CPU, and
in the reductions of losses and norm. Under FSDP on a GPU transfers overlap with kernels on streams of their own; what
is not hidden stays with forward and backward.
"""

import time
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

Phase = Literal["host", "data", "forward", "backward", "communication", "optimizer"]
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "communication", "optimizer")
"""What a step is made of; `host` is what is left of its wall time."""


class StepClock:
    """Seconds of one step at a time, by phase."""

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008 - never changed
        self._cuda = device.type == "cuda"
        self._stack: list[Phase] = []
        self._marks: list[tuple[Phase, Any]] = []
        """(phase that ends, the moment): a time in nanoseconds, or an event in the stream."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._since = 0

    def begin(self) -> None:
        """Begin a step: what collectives of an evaluation took before it counts for nothing."""
        self._marks.clear()
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def phase(self, name: Phase) -> "_Within":
        """A context whose time counts for `name`, and not for the phase around it."""
        return _Within(self, name)

    def switch(self, name: Phase) -> None:
        """Let the rest of the present phase count for `name`; nothing outside of a phase."""
        if self._stack:
            self._mark()
            self._stack[-1] = name

    def enter(self, name: Phase) -> None:
        """Begin a phase."""
        self._mark()
        self._stack.append(name)

    def leave(self) -> None:
        """End the present phase; the one around it goes on."""
        self._mark()
        self._stack.pop()

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call; on a GPU it waits for the last mark, which the step has waited for."""
        if self._marks:
            self._marks[-1][1].synchronize()
            for (_, start), (phase, end) in zip(self._marks, self._marks[1:], strict=False):
                if phase != "host":
                    self._seconds[phase] += start.elapsed_time(end) / 1e3
            self._marks.clear()
        taken, self._seconds = {**self._seconds}, dict.fromkeys(PHASES, 0.0)
        return taken

    def _mark(self) -> None:
        phase: Phase = self._stack[-1] if self._stack else "host"
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))
            return
        now = time.perf_counter_ns()
        if phase != "host":
            self._seconds[phase] += (now - self._since) / 1e9
        self._since = now


class _Within:
    """A phase as a context."""

    __slots__ = ("_clock", "_name")

    def __init__(self, clock: StepClock, name: Phase) -> None:
        self._clock = clock
        self._name: Phase = name

    def __enter__(self) -> Self:
        self._clock.enter(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.leave()


class TimedWork(Work):
    """A collective under way, the wait for which counts as communication."""

    def __init__(self, work: Work, clock: StepClock) -> None:
        super().__init__()
        self._work, self._clock = work, clock

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the collective; a time of zero has no limit of its own."""
        with self._clock.phase("communication"):
            return self._work.wait(timeout)


class TimedAllGather(DefaultAllGather):
    """FSDP's all-gather on a CPU, for `FSDPModule.set_custom_all_gather`."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, async_op: bool = False
    ) -> Work | None:
        """input [n] of each rank -> output [ranks * n]."""
        with self._clock.phase("communication"):
            work = super().__call__(output_tensor, input_tensor, group, async_op)
        return None if work is None else TimedWork(work, self._clock)


class TimedReduceScatter(DefaultReduceScatter):
    """FSDP's reduce-scatter on a CPU, for `FSDPModule.set_custom_reduce_scatter`."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work:
        """input [ranks * n] -> output [n], this rank's part of the sum."""
        with self._clock.phase("communication"):
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
