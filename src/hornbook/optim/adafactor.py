"""Adafactor (Shazeer and Stern 2018, arXiv 1804.04235) as transformers has it, which is how T5 was trained."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hornbook.kernels.torch_versions import EagerOptimizer

if TYPE_CHECKING:
    from hornbook.optim.config.classic_rules import AdafactorRule


class AdafactorUpdate(EagerOptimizer):
    """An update whose second moment is the product of means over rows and over columns, for tensors of 2 dims or more.

    Root mean squares are those of a whole tensor, of all experts together.
    """

    def __init__(self, groups: list[dict[str, Any]], rule: "AdafactorRule") -> None:
        super().__init__(groups, {})
        self.rule = rule

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    self._update(group, parameter, parameter.grad)

    def _update(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state, rule = self.state[parameter], self.rule
        step = state["step"].add_(1)
        rate = self._rate(group["lr"], step, parameter)
        update = _scaled(state, gradient, step**-rule.decay_rate, group["eps"])
        scale = rate / (_rms(update) / rule.clip_threshold).clamp_(min=1.0)
        if group["weight_decay"]:
            parameter.mul_(1 - group["weight_decay"] * rate)
        if rule.beta1:
            parameter.sub_(state["exp_avg"].lerp_(update.mul_(scale), 1 - rule.beta1))
        else:
            parameter.addcmul_(update, scale, value=-1)

    def _rate(self, lr: float, step: Tensor, parameter: Tensor) -> Tensor | float:
        """Of the step that ends with `step` steps: a scalar on the device, since the host does not know them."""
        rule, rate = self.rule, lr
        if rule.relative_step:
            first = 1e-6 * step if rule.warmup_init else torch.full_like(step, 1e-2)
            rate = lr * torch.minimum(first, step.rsqrt())
        return rate * _rms(parameter).clamp(min=rule.min_scale) if rule.scale_parameter else rate


def _scaled(state: dict[str, Tensor], gradient: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The gradient over the root of the second moment, into which its squares go with `weight`."""
    squares = gradient.square()
    if gradient.dim() < 2:
        second = state["exp_avg_sq"].lerp_(squares.add_(eps), weight)
        return second.rsqrt().mul_(gradient)
    rows = state["exp_avg_sq_row"].lerp_(squares.mean(dim=-1).add_(eps), weight)
    columns = state["exp_avg_sq_col"].lerp_(squares.mean(dim=-2).add_(eps), weight)
    row_factor = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_()
    return torch.mul(row_factor.unsqueeze(-1), gradient, out=squares).mul_(columns.rsqrt().unsqueeze(-2))


def _rms(x: Tensor) -> Tensor:
    """Root mean square."""
    return torch.linalg.vector_norm(x) / x.numel() ** 0.5
