"""Gradients between backward and the optimizer: global norm, clipping, and dynamic loss scaling for fp16.

The norm is the global L2 norm over all parameters (Pascanu et al. 2013, arXiv 1211.5063). A gradient counts as finite
when its sum of squares is finite in float32; anything else (NaN, infinities, 1e38) must not reach a weight or a
moment, and multiplying by zero would not help: 0 * NaN is NaN. So `found_nonfinite` goes to `Optimizer.step`, which
refuses the update; fused kernels do so without a host synchronisation.

Loss scaling (Micikevicius et al. 2018, arXiv 1710.03740) uses the constants of torch's GradScaler. The loss is
multiplied by the scale before backward, so that small gradients do not vanish in fp16, and gradients are divided by it
before they are judged and used. A step refused for a gradient that is not finite halves the scale, a long run of good
steps doubles it. The scale is a power of two: multiplying and dividing by it rounds nothing. Every rank judges by the
same global norm, so all hold the same scale without a collective.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hornbook.optim.config.clipping_config import StepLimits
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import DIVIDING, Axis, World

FIRST_SCALE = 2.0**16
FLOOR = 1.0
CEILING = 2.0**127
"""Largest power of two in float32."""
GROWTH_STEPS = 2000
"""Good steps after which the scale is doubled."""


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """float32 scalar on the gradients' device: the global L2 norm of gradients that are all on this rank."""
    assert gradients, "there are no gradients: call forward_backward first"
    if gradients[0].dtype == torch.bfloat16:
        return torch.stack([torch.linalg.vector_norm(each, dtype=torch.float32) for each in gradients]).norm()
    return get_total_norm(gradients)


def norm_of_shards(shards: Mapping[str, ParameterShard], gradients: Sequence[Tensor], world: World) -> Tensor:
    """float32 scalar, the same on every rank: the global L2 norm of the gradients of all trained shards of all ranks.

    gradients: of those of this rank, in their order.
    """
    trained = [each for each in shards.values() if each.tensor.requires_grad]  # none on a stage that is frozen
    assert len(gradients) == len(trained), "there are no gradients: call forward_backward first"
    pairs = [*zip(trained, gradients, strict=True)]
    dtype = torch.promote_types(next(iter(shards.values())).tensor.dtype, torch.float32)
    return sum_of_shards(pairs, world, lambda each: global_norm(each).double().square()).sqrt().to(dtype)


def sum_of_shards(
    pairs: Sequence[tuple[ParameterShard, Tensor]], world: World, value: Callable[[Sequence[Tensor]], Tensor]
) -> Tensor:
    """float64 scalar, the same on every rank: `value` of a tensor of each shard of all ranks, each part counted once.

    `value` gives a float64 scalar for some of the tensors; that of all is the sum of those of parts.
    """
    sums = {axes: torch.zeros((), dtype=torch.float64, device=world.device) for axes in divisions_of(world)}
    for axes in sums:
        if counted := [tensor for shard, tensor in pairs if shard.axes == axes and shard.is_first]:
            sums[axes] = value(counted).to(world.device)  # weights may be on the host (`parallel.offload`)
    return torch.stack([*sum_over_axes(sums, world).values()]).sum()


def divisions_of(world: World) -> list[tuple[Axis, ...]]:
    """Every set of axes along which ranks may hold different parts of a parameter, the empty one included.

    A rank need not have parameters of each: it takes part in sums over them all the same, and none waits for it.
    """
    found: list[tuple[Axis, ...]] = [()]
    for axis in DIVIDING:
        if world.axis_size([axis]) > 1:
            more: list[tuple[Axis, ...]] = [(*axes, axis) for axes in found]
            found += more
    return found


def sum_over_axes(values: Mapping[tuple[Axis, ...], Tensor], world: World) -> dict[tuple[Axis, ...], Tensor]:
    """Each tensor summed over the axes that it is given under; every rank gives the same ones, in the same order."""
    sums = dict(values)
    for axis in DIVIDING:
        names = [axes for axes in sums if axis in axes]
        if names and world.axis_size([axis]) > 1:
            stacked = world.all_reduce_sum(torch.stack([sums[axes] for axes in names]), [axis])
            sums |= dict(zip(names, stacked, strict=True))
    return sums


def found_nonfinite(*values: Tensor) -> Tensor:
    """float32 scalar: 1.0 if the square of any of the scalars is not finite in float32, else 0.0."""
    flat = torch.stack([value.float() for value in values])
    return (~torch.isfinite(flat * flat)).any().float()


class Refusal(NamedTuple):
    """Whether the update of a step is refused: float32 scalars on the device, 1.0 or 0.0."""

    any: Tensor
    nonfinite: Tensor


def refusal(norm: Tensor, objective: Tensor, loss: Tensor, weight: float, limits: StepLimits | None) -> Refusal:
    """By norm and objective that are not finite, or beyond limits. `loss`: its sum over targets of this weight."""
    nonfinite = found_nonfinite(norm, objective)
    if limits is None:
        return Refusal(nonfinite, nonfinite)
    weight = max(weight, 1.0)
    beyond = (norm > limits.norm) | (loss > limits.loss * weight)
    beyond |= (norm > limits.spike_norm) & (loss > limits.spike_loss * weight)
    return Refusal(torch.maximum(nonfinite, beyond.float()), nonfinite)


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scale the gradients in place by min(1, limit / (norm + 1e-6)), torch's form."""
    if norm.device.type == "cpu" and float(norm) + 1e-6 <= limit:
        return  # multiplying by one changes no bit, and on the CPU the comparison needs no synchronisation
    clip_grads_with_norm_(parameters, limit, norm)


def power_below(factor: float) -> float:
    """The largest power of two up to `factor`, and 1 at least; multiplying and dividing by it rounds nothing."""
    _, exponent = math.frexp(factor)
    return 2.0 ** max(exponent - 1, 0)


class Scaler:
    """The loss scale of a run."""

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        """Factor on the loss; gradients are divided by it."""
        self._good_steps = 0
        """Steps applied since the scale last changed."""

    @property
    def spent(self) -> bool:
        """Whether the scale is at its minimum: it no longer explains a refused step, which the guard then counts."""
        return self.scale <= FLOOR

    def unscale(self, gradients: Iterable[Tensor]) -> None:
        """Divide gradients by the scale, in place."""
        for gradient in gradients:
            gradient.mul_(1.0 / self.scale)

    def follow(self, refused: bool, nonfinite: bool) -> None:
        """Adapt the scale after a step; one that was finite and refused says nothing about it."""
        if nonfinite or not refused:
            self.update(applied=not refused)

    def update(self, *, applied: bool) -> None:
        """Adapt the scale after a step that was applied, or refused because something was not finite."""
        self._good_steps += 1
        if applied and self._good_steps < GROWTH_STEPS:
            return
        self.scale = min(self.scale * 2, CEILING) if applied else max(self.scale / 2, FLOOR)
        self._good_steps = 0

    def state(self) -> dict[str, float]:
        """`scale` and `good_steps`, for a checkpoint."""
        return {"scale": self.scale, "good_steps": self._good_steps}

    def load(self, state: dict[str, float]) -> None:
        """Take over what `state()` returned."""
        self.scale, self._good_steps = float(state["scale"]), int(state["good_steps"])
