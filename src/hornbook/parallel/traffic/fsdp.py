"""FSDP's collectives: counted and timed, and with `parallel.compress` gradients that cross ranks in bfloat16.

On a GPU they run in streams of their own. There the time in flight is that between two moments of such a stream, and no
phase of the step clock changes: what computing waits for stays with forward and backward.
"""

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work  # pyright: ignore[reportPrivateImportUsage]

from hornbook.kernels.torch_versions import DefaultAllGather, DefaultAllocMixin, ReduceScatter
from hornbook.parallel.gradients.exact import fill_neutral_, sum_of_own_part
from hornbook.parallel.traffic.reduce_scatter import reduce_scatter_
from hornbook.parallel.traffic.step_clock import StepClock
from hornbook.parallel.traffic.traffic import Flow, Kind, sent_bytes


class _Counted:
    """Collectives of one kind over one axis."""

    def __init__(self, clock: StepClock, axis: str, kind: Kind) -> None:
        self.flow: Flow = axis, kind
        self._clock = clock

    def launch(self, size: int, ranks: int) -> Callable[[], None]:
        """Count a collective of `size` bytes that begins now; call the result at its end."""
        return self._clock.traffic.launch(*self.flow, sent_bytes(self.flow[1], size, ranks))

    def waiting(self) -> contextlib.AbstractContextManager[object]:
        """Around a wait of the host."""
        return contextlib.nullcontext() if self._clock.cuda else self._clock.waiting(self.flow)


class _CountedWork(Work):
    """A collective under way: its end is noticed by who waits for it."""

    def __init__(self, work: Work, counted: _Counted, ended: Callable[[], None]) -> None:
        super().__init__()
        self._work, self._counted, self._ended = work, counted, ended

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the collective; a time of zero has no limit of its own."""
        with self._counted.waiting():
            done = self._work.wait(timeout)
        self._ended()
        return done


class CountedAllGather(DefaultAllGather):
    """For `FSDPModule.set_custom_all_gather`."""

    def __init__(self, clock: StepClock, axis: str) -> None:
        self._counted = _Counted(clock, axis, "all-gather")

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, async_op: bool = False
    ) -> Work | None:
        """input [n] of each rank -> output [ranks * n]."""
        ended = self._counted.launch(output_tensor.nbytes, group.size())
        with self._counted.waiting():
            work = super().__call__(output_tensor, input_tensor, group, async_op)
        if work is not None:
            return _CountedWork(work, self._counted, ended)
        ended()
        return None


class CountedReduceScatter(ReduceScatter):
    """For `FSDPModule.set_custom_reduce_scatter`: counts what another one does."""

    def __init__(self, clock: StepClock, axis: str, inner: ReduceScatter) -> None:
        self._counted, self._inner = _Counted(clock, axis, "reduce-scatter"), inner
        self.then: Callable[[Tensor], None] = lambda _: None
        """Called behind each, with this rank's part."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A send or receive buffer."""
        return self._inner.allocate(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        """input [ranks * n] -> output [n], this rank's part of the sum."""
        crossing = torch.bfloat16 if isinstance(self._inner, Bf16ReduceScatter) else input_tensor.dtype
        ended = self._counted.launch(input_tensor.numel() * crossing.itemsize, group.size())
        with self._counted.waiting():
            work = self._inner(output_tensor, input_tensor, group, op, async_op)
        ended()
        self.then(output_tensor)
        return work


class PlainReduceScatter(DefaultAllocMixin, ReduceScatter):
    """A sum over ranks, by `reduce_scatter_`."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """input [ranks * n] -> output [n], this rank's part of the sum."""
        assert op == dist.ReduceOp.SUM, "set_force_sum_reduction_for_comms(True) comes first"
        assert not async_op
        self.sum_part(output_tensor, input_tensor, group)

    def sum_part(self, part: Tensor, summands: Tensor, group: ProcessGroup) -> None:
        """Fill `part` [n] with this rank's part of the sum over ranks of `summands` [ranks * n]."""
        reduce_scatter_(part, summands, group)


class Bf16ReduceScatter(PlainReduceScatter):
    """Rounds what crosses ranks to bfloat16: half the bytes of float32, errors as of `parallel.compress`."""

    def sum_part(self, part: Tensor, summands: Tensor, group: ProcessGroup) -> None:
        rounded = part.new_empty(part.shape, dtype=torch.bfloat16)
        super().sum_part(rounded, summands.to(torch.bfloat16), group)
        part.copy_(rounded)


class ExactReduceScatter(PlainReduceScatter):
    """Sums in the fixed tree of `parallel.exact`."""

    is_empty = False
    """This rank has no microbatch in this round: set it before each backward."""

    def sum_part(self, part: Tensor, summands: Tensor, group: ProcessGroup) -> None:
        if self.is_empty:
            fill_neutral_([summands])
        part.copy_(sum_of_own_part(summands, group))


class CountedReplicas:
    """Counts the all-reduce over replicas, which torch does between a reduce-scatter and `FSDPModule`'s hook for it."""

    def __init__(self, clock: StepClock, axis: str, ranks: int) -> None:
        self._clock, self._counted, self._ranks = clock, _Counted(clock, axis, "all-reduce"), ranks
        self._ended: Callable[[], None] | None = None

    def begin(self, gradients: Tensor) -> None:
        """The reduce-scatter is done; on a GPU its stream is not that of the all-reduce, and no time is measured."""
        if not self._clock.cuda:
            self._ended = self._counted.launch(gradients.nbytes, self._ranks)
            self._clock.enter("communication", self._counted.flow)

    def __call__(self, gradients: Tensor) -> None:
        """The sum over replicas is there (`FSDPModule.set_all_reduce_hook`)."""
        if self._ended is None:
            self._clock.traffic.count(*self._counted.flow, sent_bytes("all-reduce", gradients.nbytes, self._ranks))
            return
        self._ended()
        self._clock.leave()
        self._ended = None
