"""Muon: momentum, orthogonalized by a Newton-Schulz iteration.

Sources: Jordan et al. 2024 (kellerjordan.github.io/posts/muon); scale and decay of Moonlight (Liu et al. 2025, arXiv
2502.16982, section 2.2); Polar Express (Amsel et al. 2025, arXiv 2505.16932, algorithm 1).
"""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from hornbook.kernels.torch_versions import EagerOptimizer, has_bf16
from hornbook.optim.config.matrix_rules import MuonRule

Coefficients = tuple[float, float, float]
"""a, b, c of p(x) = a x + b x^3 + c x^5, which an iteration applies to every singular value."""
QUINTIC: Coefficients = (3.4445, -4.7750, 2.0315)
POLAR_EXPRESS: tuple[Coefficients, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
"""Of the first iterations; after them `CONVERGENT`. `SAFETY` keeps rounded singular values inside its interval."""
CONVERGENT: Coefficients = (1.875, -1.25, 0.375)
SAFETY = 1.01
LEAST_NORM = 1e-7
STACKED_VALUES = 1 << 26
"""Largest number of values of matrices that a device other than a CPU orthogonalizes at once."""


class MuonUpdate(EagerOptimizer):
    """The update of `MuonRule`; state `momentum_buffer`, the mean of gradients."""

    def __init__(self, groups: list[dict[str, Any]], rule: MuonRule) -> None:
        """`groups` as `UpdateRule.build` takes them."""
        super().__init__(groups, {})
        self._rule = rule
        self._coefficients = coefficients_of(rule.iteration, rule.iterations)
        self._step_supports_amp_scaling = any(each.is_cuda for group in self.param_groups for each in group["params"])
        """On a GPU a refused step is refused there, so that the host need not wait before hundreds of launches."""
        self.found_inf: Tensor | None = None
        """1.0 on the device where the step is refused; `Optimizer.step` sets it."""

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters; each group has its `lr` and `weight_decay`."""
        for group in self.param_groups:
            for stack in stacks([each for each in group["params"] if each.numel()]):
                directions = [self._direction(each) for each in stack]
                together = directions[0] if len(stack) == 1 else torch.stack(directions)
                dtype = iteration_dtype(self._rule.dtype, together.device)
                update = orthogonalize(together, self._coefficients, dtype)
                lr = group["lr"] * scale_of(stack[0].shape, self._rule.scale)
                for parameter, each in zip(stack, update.unsqueeze(0) if len(stack) == 1 else update, strict=True):
                    target = parameter if self.found_inf is None else parameter.clone()
                    target.mul_(1 - group["lr"] * group["weight_decay"]).add_(each, alpha=-lr)
                    self._accept(parameter, target)

    def _accept(self, tensor: Tensor, changed: Tensor) -> None:
        """Give a tensor its new values, unless the step is refused."""
        if self.found_inf is not None:
            torch.where(self.found_inf > 0, tensor, changed, out=tensor)

    def _direction(self, parameter: Tensor) -> Tensor:
        gradient, rule = parameter.grad, self._rule
        assert gradient is not None
        kept = self.state[parameter]["momentum_buffer"]
        mean = (kept if self.found_inf is None else kept.clone()).lerp_(gradient, 1 - rule.momentum)
        self._accept(kept, mean)
        return gradient.lerp(mean, rule.momentum) if rule.nesterov else mean


def stacks(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Matrices to orthogonalize in one batched product: equal shapes on a GPU, where small products are slow.

    On a CPU every parameter alone: batches are no faster there, and a batched product may round otherwise than a
    single one, so that the bits would depend on which parameters a rank owns.
    """
    for shape, equal in groupby(sorted(parameters, key=lambda each: tuple(each.shape)), lambda each: each.shape):
        members = list(equal)
        alone = members[0].device.type == "cpu" or len(shape) > 2
        size = 1 if alone else max(STACKED_VALUES // shape.numel(), 1)
        yield from (members[first : first + size] for first in range(0, len(members), size))


def iteration_dtype(setting: str, device: torch.device) -> torch.dtype:
    """What `MuonRule.dtype` means on a device."""
    if setting != "auto":
        return getattr(torch, setting)
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device.type == "cpu" and has_bf16()
    return torch.bfloat16 if native else torch.float32


def coefficients_of(iteration: str, count: int) -> list[Coefficients]:
    """Coefficients of `count` iterations."""
    if iteration == "quintic":
        return [QUINTIC] * count
    safe = [(a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in POLAR_EXPRESS[:count]]
    return safe + [CONVERGENT] * (count - len(safe))


def scale_of(shape: torch.Size, scale: str) -> float:
    """Factor on the orthogonal update of matrices of this shape (the last two dims)."""
    rows, columns = shape[-2:]
    return 0.2 * math.sqrt(max(rows, columns)) if scale == "match_rms" else math.sqrt(max(1.0, rows / columns))


def orthogonalize(matrices: Tensor, coefficients: list[Coefficients], dtype: torch.dtype) -> Tensor:
    """U p(...p(S)) V' of each matrix U S V' in [..., rows, columns], in `dtype`: about U V'.

    The sides are swapped where there are more rows than columns, so that the products are of the shorter side.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.to(dtype)
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=LEAST_NORM)
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for a, b, c in coefficients:  # x' = a x + (b A + c A A) x with A = x x': p of every singular value
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
