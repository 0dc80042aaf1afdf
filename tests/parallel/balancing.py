"""An update rule that reads whole matrices, for tests of what ranks exchange for it."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import Shape, StateTensor


class Balancing(OptimizerConfig):
    """Momentum divided by the root of its mean square in the row and in the column; vectors by that of all values."""

    whole: ClassVar = True
    kind: Literal["tests.parallel.balancing:Balancing"] = "tests.parallel.balancing:Balancing"
    lr: float = 1e-2

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:
        squares = (StateTensor("left", "left"), StateTensor("right", "right")) if len(shape) > 1 else ()
        return StateTensor("momentum"), *squares

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return _Update(groups, {})


class _Update(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.numel():
                    parameter.sub_(group["lr"] * self._direction(parameter))

    def _direction(self, parameter: Tensor) -> Tensor:
        momentum = self.state[parameter]["momentum"].lerp_(parameter.grad, 0.1)
        if momentum.dim() < 2:
            return momentum / momentum.square().mean().sqrt().clamp(min=1e-12)
        left = self.state[parameter]["left"].lerp_(momentum @ momentum.mT, 0.5)
        right = self.state[parameter]["right"].lerp_(momentum.mT @ momentum, 0.5)
        rows, columns = (square.diagonal(dim1=-2, dim2=-1).clamp(min=1e-12).sqrt() for square in (left, right))
        return momentum / rows.unsqueeze(-1) / columns.unsqueeze(-2) * momentum.norm()
