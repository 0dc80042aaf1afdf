"""The gradient noise scale: the batch from which on more tokens hardly make a better step.

McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1). For g, the mean gradient of b targets, E|g|^2 is |G|^2 + S / b:
G is the gradient over all data, S the trace of the covariance of the gradients of single targets. The norms over a
whole batch of B targets and over parts of it give both without bias,

    S = (mean |g_part|^2 - |g|^2) / (mean 1/b_part - 1/B),    |G|^2 = |g|^2 - S / B,

and S / |G|^2 is the noise scale, in targets. A ratio of noisy numbers is biased, so each is averaged over the steps and
then they are divided. The norms are taken before clipping.

Without sharding the parts are the shares of the ranks, before their gradients are summed. In one process, and where
every microbatch is summed over the ranks (ZeRO-2 and -3, `parallel.exact`), the part is the first microbatch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.model.layers.transfer import to_device
from hornbook.parallel.data_parallel import SingleProcess
from hornbook.parallel.world import DATA, World


class BatchPart:
    """The squared norm of the mean gradient over parts of each batch."""

    def __init__(self, data_parallel: SingleProcess, world: World) -> None:
        self._data_parallel, self._world = data_parallel, world
        self._by_rank = data_parallel.measure_local()
        self._norm: Tensor | None = None
        self._weight = self._total = 0.0
        self._scale = 1.0

    def begin(self, batches: Sequence[Batch], total_weight: float, scale: float) -> None:
        """Called before the first microbatch; the arguments as of `Engine.forward_backward`, and the loss scale."""
        part = batches if self._by_rank else batches[:1]
        self._weight = sum(float(batch.weights.sum()) for batch in part)
        self._norm, self._total, self._scale = None, total_weight, scale

    def end_microbatch(self, gradients: list[Tensor] | None) -> None:
        """Called after each microbatch; in exact mode with its gradients, summed over the ranks."""
        if not self._by_rank and self._norm is None:
            parallel = self._data_parallel
            self._norm = parallel.norm(parallel.gradients() if gradients is None else gradients)

    def measured(self) -> list[Tensor]:
        """float64 scalars, the same on every rank: mean of |g_part|^2 and of 1 / b_part. 0 where no part is smaller.

        Called once a step, after the last microbatch.
        """
        norm = self._data_parallel.local_norm() if self._by_rank else self._norm
        assert norm is not None, "a step has a microbatch"
        weight = to_device(torch.tensor(self._weight, dtype=torch.float64), norm.device)
        if not self._by_rank:
            weight = self._world.all_reduce_sum(weight, DATA)
        counts = ((weight > 0) & (weight < self._total)).double()
        mean_norm = norm.double() / self._scale * self._total / weight.clamp(min=1e-30)
        sums = counts * torch.stack([torch.ones_like(weight), mean_norm.square(), 1 / weight.clamp(min=1e-30)])
        if self._by_rank:
            sums = self._world.all_reduce_sum(sums, DATA)
        return list((sums[1:] / sums[0].clamp(min=1)).unbind())


@dataclass(frozen=True)
class NoiseRecord:
    """The noise scale after a step."""

    ratio: float | None
    """Ratio of the averages, in targets; None while they do not allow one."""
    trace: float | None
    """S of this step alone; None where the batch had no smaller part."""
    signal: float | None
    """|G|^2 of this step alone."""


class NoiseScale:
    """Running averages of S and |G|^2, and their ratio."""

    def __init__(self, steps: int) -> None:
        """`steps`: how many steps the averages look back."""
        self._share = 1.0 / steps
        self._trace = self._signal = 0.0
        self._newest: tuple[float, float] | None = None

    def update(self, parts: Sequence[float], norm: float, total_weight: float) -> None:
        """Take in a step: the means over the parts that `BatchPart` gives, norm and targets of the whole batch."""
        square, inverse = parts
        difference = inverse - 1.0 / max(total_weight, 1.0)
        if not math.isfinite(square) or not difference > 0:
            self._newest = None  # the batch had no smaller part
            return
        trace = (square - norm**2) / difference
        self._newest = trace, norm**2 - trace / total_weight
        self._trace += self._share * (trace - self._trace)
        self._signal += self._share * (self._newest[1] - self._signal)

    @property
    def ratio(self) -> float | None:
        """The noise scale in targets; None while the averages do not allow one. They begin at 0, which cancels here."""
        return self._trace / self._signal if self._trace > 0 and self._signal > 0 else None

    def record(self) -> NoiseRecord:
        """The ratio of the averages, and S and |G|^2 of the newest step."""
        return NoiseRecord(self.ratio, *(self._newest or (None, None)))

    def state(self) -> dict[str, float]:
        """The averages, for a checkpoint."""
        return {"trace": self._trace, "signal": self._signal}

    def load(self, state: Mapping[str, float]) -> None:
        """Take over what `state()` returned."""
        self._trace, self._signal = float(state["trace"]), float(state["signal"])
