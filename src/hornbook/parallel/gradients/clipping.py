"""Clipping: gradients of all ranks are limited as one process limits them (`hornbook.optim.config.clipping_config`)."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hornbook.model.layers.transfer import to_device
from hornbook.optim.config.clipping_config import AdaptiveClip, AnyClip, NormClip, StepLimits, ValueClip, ZScoreClip
from hornbook.optim.foreach import foreach
from hornbook.parallel.gradients.exact import fold_, row_squares
from hornbook.parallel.gradients.gradient_norm import clip
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import Axis, World

NOT_ADAPTIVE = frozenset({"embedding", "position", "head"})
"""Roles of parameters that adaptive clipping leaves (arXiv 2102.06171, section 4)."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median distance from the median."""
LEAST_DEVIATION = 0.02
"""Of log norms; else a run of equal norms would make the next one stand out, however near it is."""


class Clipping:
    """Limits the gradients of a run. Every rank makes the same calls, and all remember the same norms."""

    def __init__(
        self,
        shards: Mapping[str, ParameterShard],
        world: World,
        roles: Callable[[], Mapping[str, str]],
        *,
        exact: bool,
    ) -> None:
        """`roles` of parameters by name, asked for where the kind of clipping needs them."""
        self._shards, self._world, self._exact = shards, world, exact
        self._roles = functools.cache(roles)
        self._norms: Tensor | None = None
        """float64 [window]: logarithms of norms after clipping, the oldest first; NaN before the first."""
        self._restored: list[float] = []

    def apply(self, how: AnyClip, norm: Tensor, refused: Tensor, limits: StepLimits | None = None) -> None:
        """Limit the gradients in place, whose global norm is `norm`; without a wait on a GPU.

        `refused` is 1.0 where the step will be: then no norm is remembered. `limits`: a norm that stands out is cut to
        what they say first.
        """
        if not isinstance(how, ZScoreClip):
            self.load([])  # what it remembered before is of no use to it later
        trained = [shard.tensor for shard in self._shards.values() if shard.tensor.grad is not None]
        gradients = [each.grad for each in trained if each.grad is not None]
        if gradients:
            norm, refused = (each.to(gradients[0].device) for each in (norm, refused))  # where the host holds them
        if limits is not None and math.isfinite(limits.norm_over):
            norm = _cut(gradients, norm, limits)
        match how:
            case NormClip():
                if how.limit:
                    clip(trained, norm, how.limit)
            case ValueClip():
                for gradient in gradients:
                    gradient.clamp_(-how.limit, how.limit)
            case AdaptiveClip():
                self._clip_rows(how)
            case ZScoreClip():
                _scale(gradients, self._usual(how, norm, refused) / (norm + 1e-6))

    def state(self) -> list[float]:
        """The norms it remembers, for a checkpoint; empty where it remembers none."""
        if self._norms is None:
            return self._restored
        return [each for each in self._norms.tolist() if not math.isnan(each)]

    def load(self, norms: Sequence[float]) -> None:
        """Take over what `state()` returned."""
        self._norms, self._restored = None, list(norms)

    # ---- by past norms

    def _usual(self, how: ZScoreClip, norm: Tensor, refused: Tensor) -> Tensor:
        """The largest norm that is usual now; the norm is remembered, cut to it."""
        norms = self._window(how.window, norm.device)
        middle = norms.nanmedian()
        deviation = (NORMAL * (norms - middle).abs().nanmedian()).clamp(min=LEAST_DEVIATION)
        first = torch.full_like(middle, math.log(how.limit) if how.limit else math.inf)
        limit = torch.where((~norms.isnan()).sum() < how.warmup, first, middle + how.z * deviation)
        taken = torch.minimum(norm.double().clamp(min=1e-30).log(), limit)
        self._norms = torch.where(refused > 0, norms, torch.cat([norms[1:], taken[None]]))
        return limit.exp().to(norm.dtype)

    def _window(self, size: int, device: torch.device) -> Tensor:
        if self._norms is None or len(self._norms) != size:
            kept = self.state()[-size:]
            values = [math.nan] * (size - len(kept)) + kept
            self._norms, self._restored = to_device(torch.tensor(values, dtype=torch.float64), device), []
        return self._norms

    # ---- by rows

    def _clip_rows(self, how: AdaptiveClip) -> None:
        roles = self._roles()
        units = [
            _Units(shard, shard.tensor.grad, self._exact)
            for name, shard in self._shards.items()
            if shard.tensor.grad is not None and roles[name] not in NOT_ADAPTIVE
        ]
        if not units:
            return
        by_axes = dict[tuple[Axis, ...], list[_Units]]()
        for each in units:
            by_axes.setdefault(tuple(axis for axis in each.shard.axes if axis != "pipeline"), []).append(each)
        for axes in sorted(by_axes):  # in the same order on all ranks of a stage, which have the same parameters
            self._limit_rows(by_axes[axes], axes, how)

    def _limit_rows(self, units: Sequence["_Units"], axes: Sequence[Axis], how: AdaptiveClip) -> None:
        """Of parameters that the ranks of `axes` divide."""
        squares = [each.squares(of) for each in units for of in (each.shard.tensor.detach(), each.gradient)]
        sums = self._world.all_reduce_sum(torch.cat(squares), axes).split([len(each) for each in squares])
        for each, weights, gradients in zip(units, sums[::2], sums[1::2], strict=True):
            each.limit(weights, gradients, how)


class _Units:
    """The rows of a parameter (a vector is one), as a shard holds some of them or parts of them."""

    def __init__(self, shard: ParameterShard, gradient: Tensor, exact: bool) -> None:
        self.shard, self.gradient, self._exact = shard, gradient, exact
        self._is_matrix = len(shard.shape) > 1
        dims = len(shard.shape) - 1 if self._is_matrix else len(shard.shape)
        self._count = math.prod(shard.shape[:dims])
        numbers = torch.arange(self._count, device=gradient.device).view(shard.shape[:dims])
        self._numbers = numbers[shard.slices[:dims]].flatten()
        """Of the rows of this shard, among those of the whole."""

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, tensor.shape[-1]) if self._is_matrix else tensor.reshape(-1, 1)

    def squares(self, tensor: Tensor) -> Tensor:
        """float64 [rows of the whole]: sums of squares of this shard's part; of a vector, its squares."""
        found = torch.zeros(self._count, dtype=torch.float64, device=tensor.device)
        if tensor.numel() and self.shard.copy == 0:
            rows = self._rows(tensor)
            whole = self._exact or not self._is_matrix
            sums = row_squares(rows) if whole else torch.linalg.vector_norm(rows, dim=1).double().square_()
            found[self._numbers] = sums
        return found

    def limit(self, weights: Tensor, gradients: Tensor, how: AdaptiveClip) -> None:
        """Scale the gradient, given sums of squares [rows of the whole] of weights and gradients over all ranks."""
        if not self._is_matrix:
            weights, gradients = fold_(weights[None].clone()), fold_(gradients[None].clone())
        largest = how.limit * weights.sqrt().clamp(min=how.least)
        factors = (largest / gradients.sqrt().clamp(min=1e-30)).clamp(max=1.0).to(self.gradient.dtype)
        rows = self._rows(self.gradient)
        mine = factors[self._numbers] if self._is_matrix else factors
        rows.mul_(mine[:, None])


def _cut(gradients: Sequence[Tensor], norm: Tensor, limits: StepLimits) -> Tensor:
    """The norm of gradients after those that stand out were cut; a step that does not keeps every bit."""
    if norm.device.type == "cpu" and not float(norm) > limits.norm_over:
        return norm  # the comparison needs no wait here
    over = norm > limits.norm_over
    _scale(gradients, torch.where(over, limits.norm_to / (norm + 1e-6), 1.0))
    return torch.where(over, limits.norm_to, norm)


def _scale(gradients: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply by a scalar where it is below 1."""
    if factor.device.type == "cpu" and not float(factor) < 1:
        return  # the comparison needs no wait here
    foreach._foreach_mul_(list(gradients), factor.clamp(max=1.0))
