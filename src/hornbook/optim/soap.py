"""SOAP: AdamW in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv 2409.11321, algorithm 3).

Of a matrix G = gradient, L is the mean of G G' and R that of G' G; Q_L and Q_R are their eigenvectors, the first of the
largest eigenvalue. AdamW runs on Q_L' G Q_R, its first moment turns with the basis, and its step is turned back.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hornbook.kernels.torch_versions import EagerOptimizer
from hornbook.optim.config.matrix_rules import SoapRule
from hornbook.optim.foreach import Known

State = dict[str, Tensor]


class SoapUpdate(EagerOptimizer):
    """The update of `SoapRule`. The state `step` counts gradients, also the first, which only makes the basis."""

    def __init__(self, groups: list[dict[str, Any]], rule: SoapRule) -> None:
        """`groups` as `UpdateRule.build` takes them."""
        super().__init__(groups, {})
        self._rule = rule
        self._known = Known()

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters; each group has its `lr`, `weight_decay` and `eps`."""
        members = [(group, each) for group in self.param_groups for each in group["params"] if each.numel()]
        if not members:
            return
        counts = self._known.read([self.state[each]["step"] for _, each in members])
        for (group, parameter), count in zip(members, counts, strict=True):
            self._update(parameter, group, int(count))

    def _update(self, parameter: Tensor, group: Mapping[str, Any], count: int) -> None:
        """Update one parameter after `count` gradients."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        self._known.write(state["step"], count + 1)
        bases = [side for side in ("left", "right") if side in state]
        if bases and count == 0:  # no basis yet: the first gradient makes it, and moves nothing
            self._accumulate(state, gradient, 1 - self._rule.beta2)
            for side in bases:
                state[f"{side}_basis"].copy_(torch.linalg.eigh(state[side]).eigenvectors.flip(-1))
            return
        steps = count if bases else count + 1
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(self._adam(state, gradient, steps, group))
        self._accumulate(state, gradient, 1 - self._rule.beta2)
        if bases and steps % self._rule.refresh_every == 0:
            refresh(state)

    def _adam(self, state: State, gradient: Tensor, steps: int, group: Mapping[str, Any]) -> Tensor:
        """What Adam's step number `steps` subtracts, computed in the basis."""
        beta1, beta2 = self._rule.beta1, self._rule.beta2
        turned = to_basis(gradient, state)
        mean, square = state["exp_avg"].lerp_(turned, 1 - beta1), state["exp_avg_sq"]
        square.mul_(beta2).addcmul_(turned, turned, value=1 - beta2)
        root = (square.sqrt() / (1 - beta2**steps) ** 0.5).add_(group["eps"])
        return from_basis(mean / root, state) * (group["lr"] / (1 - beta1**steps))

    def _accumulate(self, state: State, gradient: Tensor, share: float) -> None:
        if "left" in state:
            state["left"].lerp_(gradient @ gradient.mT, share)
        if "right" in state:
            state["right"].lerp_(gradient.mT @ gradient, share)


def to_basis(matrices: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Q_L' M Q_R; a side without a basis stays."""
    turned = state["left_basis"].mT @ matrices if "left" in state else matrices
    return turned @ state["right_basis"] if "right" in state else turned


def from_basis(matrices: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Q_L M Q_R'; a side without a basis stays."""
    turned = state["left_basis"] @ matrices if "left" in state else matrices
    return turned @ state["right_basis"].mT if "right" in state else turned


def refresh(state: State) -> None:
    """Move the eigenvectors by one power iteration and QR (algorithm 4), and the moments with them.

    The second moment keeps its values: only the order of the eigenvectors, largest eigenvalue first, moves them.
    """
    mean = from_basis(state["exp_avg"], state)
    for side, dim in (("left", -2), ("right", -1)):
        if side not in state:
            continue
        square, basis = state[side], state[f"{side}_basis"]
        estimates = (basis * (square @ basis)).sum(-2)  # the diagonal of Q' S Q
        order = estimates.argsort(dim=-1, descending=True, stable=True)
        basis.copy_(torch.linalg.qr(square @ _columns(basis, order)).Q)
        second = state["exp_avg_sq"]
        second.copy_(_columns(second, order) if dim == -1 else _columns(second.mT, order).mT)
    state["exp_avg"].copy_(to_basis(mean, state))


def _columns(matrices: Tensor, order: Tensor) -> Tensor:
    """Columns of each matrix in this order."""
    return matrices.gather(-1, order.unsqueeze(-2).expand(matrices.shape))
