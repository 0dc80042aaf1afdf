"""LAMB (You et al. 2020, arXiv 1904.00962, algorithm 2)."""

import math
from typing import Any

import torch
from torch import Tensor

from hornbook.kernels.torch_versions import EagerOptimizer
from hornbook.optim import kernels
from hornbook.optim.foreach import pieces


class LAMBUpdate(EagerOptimizer):
    """Adam's update with decay in it, scaled to the norm of each matrix where the group is `scaled`."""

    def __init__(self, groups: list[dict[str, Any]], beta1: float, beta2: float, eps: float) -> None:
        super().__init__(groups, {})
        self.beta1, self.beta2, self.eps = beta1, beta2, eps

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    update = self._update(parameter, parameter.grad, group)
                    if group["scaled"]:
                        parameter.addcmul_(update, _ratio(parameter, update), value=-group["lr"])
                    else:
                        parameter.add_(update, alpha=-group["lr"])

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Adam's, and the decay: on a CPU in one pass."""
        state = self.state[parameter]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        if not kernels.fits(parameter, gradient, first, second):
            return self._adam(state, gradient).add_(parameter, alpha=group["weight_decay"])
        step, update = state["step"].add_(1), torch.empty_like(gradient)
        biases = (1 / float(_bias(beta, step)) for beta in (self.beta1, self.beta2))
        by = (1 - self.beta1, self.beta2, 1 - self.beta2, *biases, self.eps, float(group["weight_decay"]))
        kernels.lamb(update, parameter, gradient, first, second, by)
        return update

    def _adam(self, state: dict[str, Tensor], gradient: Tensor) -> Tensor:
        """The moments with this gradient in them, then m_hat / (sqrt(v_hat) + eps)."""
        step = state["step"].add_(1)
        first_bias, second_bias = _bias(self.beta1, step), _bias(self.beta2, step)
        found = torch.empty_like(gradient)
        for update, g, first, second in pieces([found, gradient, state["exp_avg"], state["exp_avg_sq"]]):
            first.lerp_(g, 1 - self.beta1)
            second.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            torch.div(second, second_bias, out=update).sqrt_().add_(self.eps).mul_(first_bias)
            torch.div(first, update, out=update)
        return found


def _bias(beta: float, step: Tensor) -> Tensor | float:
    """1 - beta^step, without a wait for the device; exact to the last digits, unlike the power in float32."""
    return -torch.expm1(step * math.log(beta)) if beta else 1.0


def _ratio(parameter: Tensor, update: Tensor) -> Tensor:
    """|w| / |u| of each matrix of [..., rows, columns]; 1 where one of them is 0."""
    dims = tuple(range(parameter.dim()))[-2:] or None
    size = torch.linalg.vector_norm(parameter, dim=dims, keepdim=True)
    step = torch.linalg.vector_norm(update, dim=dims, keepdim=True)
    return torch.where((size > 0) & (step > 0), size / step, 1.0)
