"""Schedule-Free optimizers (Defazio et al. 2024, arXiv 2405.15682, equations 3 to 5 and algorithm 1).

Three sequences: z takes the steps of the base optimizer, x is the average of z with weights lr_max^2, and gradients are
computed at y = (1 - b) z + b x. The parameter holds y; x follows from y and z.
"""

from typing import Any

import torch
from torch import Tensor

from hornbook.kernels.torch_versions import EagerOptimizer
from hornbook.optim import kernels
from hornbook.optim.foreach import Known


class ScheduleFreeUpdate(EagerOptimizer):
    """The update of `ScheduleFree`, and without `beta2` that of `ScheduleFreeSGD`."""

    def __init__(self, groups: list[dict[str, Any]], beta1: float, beta2: float | None) -> None:
        """`groups` as `UpdateRule.build` takes them."""
        super().__init__(groups, {})
        self._beta1, self._beta2 = beta1, beta2
        self._known = Known()

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters; each group has its `lr` and `weight_decay`."""
        members = [(group, each) for group in self.param_groups for each in group["params"]]
        names = ("step", "lr_max", "steps_averaged")
        found = self._known.read([self.state[each][name] for _, each in members for name in names])
        for number, (group, parameter) in enumerate(members):
            self._update(parameter, group, *found[3 * number : 3 * number + 3])

    def _update(
        self, parameter: Tensor, group: dict[str, Any], step: float, lr_max: float, steps_averaged: float
    ) -> None:
        """One parameter, y. The average so far is of so many steps as if all had the weight of the last, lr_max^2."""
        state, lr = self.state[parameter], group["lr"]
        largest = max(lr, lr_max)
        steps_averaged = steps_averaged * (lr_max / largest) ** 2 + 1
        z, share = state["z"], 1 / steps_averaged
        if step == 0:
            z.copy_(parameter)
        factor = lr * (self._beta1 * (1 - share) - 1)
        if not self._in_one_pass(parameter, group, step + 1, share, factor):
            direction = self._direction(parameter, group, step + 1)
            if group["weight_decay"]:
                direction = direction.add(parameter, alpha=group["weight_decay"])
            parameter.lerp_(z, share).add_(direction, alpha=factor)
            z.sub_(direction, alpha=lr)
        for name, value in (("step", step + 1), ("lr_max", largest), ("steps_averaged", steps_averaged)):
            self._known.write(state[name], value)

    def _in_one_pass(self, parameter: Tensor, group: dict[str, Any], step: float, share: float, factor: float) -> bool:
        """Update by the kernel for CPUs, if the parameter fits."""
        gradient, beta2, state = parameter.grad, self._beta2, self.state[parameter]
        if gradient is None or beta2 is None or not kernels.fits(parameter, gradient, state["z"]):
            return False
        moment = beta2, 1 - beta2, 1 / (1 - beta2**step), group["eps"]
        by = (*moment, group["weight_decay"], share, factor, group["lr"])
        kernels.schedule_free(parameter, gradient, state["z"], state["exp_avg_sq"], by)
        return True

    def _direction(self, parameter: Tensor, group: dict[str, Any], step: float) -> Tensor:
        gradient, beta2 = parameter.grad, self._beta2
        assert gradient is not None
        if beta2 is None:
            return gradient
        square = self.state[parameter]["exp_avg_sq"]
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return gradient / (square / (1 - beta2**step)).sqrt_().add_(group["eps"])

    @torch.no_grad()
    def evaluation_weights(self, parameter: Tensor) -> Tensor:
        """x = y + (1/b - 1) (y - z), a new tensor; before the first step y."""
        state = self.state[parameter]
        back = torch.where(state["step"] > 0, 1 - 1 / self._beta1, 0.0).to(parameter.dtype)
        return torch.lerp(parameter.detach(), state["z"], back)
