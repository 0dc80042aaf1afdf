"""Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2)."""

from typing import Any

import torch

from hornbook.kernels.torch_versions import EagerOptimizer
from hornbook.optim import kernels
from hornbook.optim.foreach import foreach, foreach_lists


class LionUpdate(EagerOptimizer):
    """Weights shrink by lr * weight_decay, then move by lr along the sign; the momentum takes the gradient last."""

    def __init__(self, groups: list[dict[str, Any]], beta1: float, beta2: float) -> None:
        super().__init__(groups, {})
        self.beta1, self.beta2 = beta1, beta2

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            if self._in_one_pass(group):
                continue
            for parameters, gradients, momenta in foreach_lists(group, self.state, "exp_avg"):
                direction = foreach._foreach_lerp(momenta, gradients, 1 - self.beta1)
                foreach._foreach_sign_(direction)
                if group["weight_decay"]:
                    foreach._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                foreach._foreach_add_(parameters, direction, alpha=-group["lr"])
                foreach._foreach_lerp_(momenta, gradients, 1 - self.beta2)

    def _in_one_pass(self, group: dict[str, Any]) -> bool:
        """Update a group by the kernel for CPUs, if all of it fits."""
        members = [each for each in group["params"] if each.grad is not None and each.numel()]
        rows = [(each, each.grad, self.state[each]["exp_avg"]) for each in members]
        if not all(kernels.fits(*row) for row in rows):
            return False
        for row in rows:
            kernels.lion(*row, group["lr"], group["weight_decay"], (self.beta1, self.beta2))
        return True
