"""AdamW with moments of fewer bits, and over bfloat16 parameters without a float32 copy.

With m, v the moments of before and g the gradient, all arithmetic in float32:

    m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
    p = (1 - lr decay) p - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

What is then stored is rounded: moments to 8-bit codes (`codes.py`) or stochastically to bfloat16, bfloat16 parameters
stochastically (`stochastic.py`). The functions below are written in torch and run on any device; on a CPU kernels
(`narrow_kernels.py`) take their place, with the same bits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hornbook.kernels.team import supports
from hornbook.kernels.torch_versions import EagerOptimizer
from hornbook.optim.low_precision import narrow_kernels as kernels
from hornbook.optim.low_precision.codes import dequantize, quantize
from hornbook.optim.low_precision.narrow_kernels import Coefficients
from hornbook.optim.low_precision.stochastic import Key, draw_key, draws, round_stochastically

PIECE = 2**23
"""Values of a parameter that a device other than a CPU updates at once: draws take 8 bytes a value, several times."""


@dataclass(frozen=True)
class Draws:
    """The random bits of one update of one parameter's shard."""

    key: Key
    first: int
    """Index of the shard's first value in the whole parameter."""


class LowPrecisionAdamW(EagerOptimizer):
    """The base: what is common to all forms of state."""

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": 0.0})
        self._betas = betas
        self.first_values: Mapping[str, int] = {}
        """Index of each shard's first value in its parameter, by name; 0 where none is given."""
        self.kernels = True
        """Use kernels where they exist."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter.grad is not None and parameter.numel():
                    state = self.state[parameter]
                    state["step"] += 1
                    step = int(state["step"]) if parameter.device.type == "cpu" else state["step"].long()
                    key, first = draw_key(name, step), self.first_values.get(name, 0)
                    by = self._factors(group, state["step"])
                    most = parameter.numel() if parameter.device.type == "cpu" else PIECE
                    for piece, gradient, kept in row_pieces(parameter, parameter.grad, state, most):
                        self.update(piece, gradient, kept, by, Draws(key, first))
                        first += piece.numel()

    def _factors(self, group: dict[str, Any], step: Tensor) -> Coefficients:
        """On a GPU those that depend on the step stay there: the host does not wait."""
        (beta1, beta2), lr = self._betas, group["lr"]
        count = float(step) if step.device.type == "cpu" else step.double()
        rate, root = lr / (1 - beta1**count), (1 - beta2**count) ** -0.5
        return Coefficients(1 - lr * group["weight_decay"], rate, root, beta1, beta2, group["eps"])

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], by: Coefficients, drawn: Draws
    ) -> None:
        """Change a parameter and its state."""
        raise NotImplementedError


class QuantizedAdamW(LowPrecisionAdamW):
    """Moments as 8-bit codes: `exp_avg` signed, `exp_avg_sq` unsigned, each with `_scale` [..., blocks]."""

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], by: Coefficients, drawn: Draws
    ) -> None:
        codes = [state[name] for name in ("exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale")]
        if self.kernels and _fits(parameter, gradient):
            kernels.update_8bit(parameter, gradient, codes, kernels.packed(by), drawn.key, drawn.first)
            return
        moments = dequantize(codes[0], codes[1], signed=True), dequantize(codes[2], codes[3], signed=False)
        value, m, v = adamw(parameter.float(), gradient.float(), *moments, by)
        for target, source in zip(codes, (*quantize(m, signed=True), *quantize(v, signed=False)), strict=True):
            target.copy_(source)
        _store(parameter, value, drawn)


class StochasticAdamW(LowPrecisionAdamW):
    """Moments `exp_avg` and `exp_avg_sq` in bfloat16, rounded stochastically."""

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], by: Coefficients, drawn: Draws
    ) -> None:
        moments = state["exp_avg"], state["exp_avg_sq"]
        if self.kernels and _fits(parameter, gradient):
            kernels.update_bf16(parameter, gradient, *moments, kernels.packed(by), drawn.key, drawn.first)
            return
        value, m, v = adamw(parameter.float(), gradient.float(), moments[0].float(), moments[1].float(), by)
        bits, _ = draws(drawn.key, drawn.first, parameter.numel(), parameter.device)
        moments[0].copy_(round_stochastically(m, bits))
        moments[1].copy_(round_stochastically(v, bits >> 16))
        _store(parameter, value, drawn)


def row_pieces(
    parameter: Tensor, gradient: Tensor, state: Mapping[str, Tensor], most: int
) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """A parameter, its gradient and its state in runs of rows of at most `most` values, but whole rows."""
    rows = max(most * len(parameter) // parameter.numel(), 1) if parameter.dim() > 1 else parameter.numel()
    names = [name for name, tensor in state.items() if tensor.dim()]
    for first in range(0, len(parameter) if parameter.dim() else 1, rows):
        here = slice(first, first + rows) if parameter.dim() else ...
        yield parameter[here], gradient[here], {name: state[name][here] for name in names}


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, by: Coefficients) -> tuple[Tensor, Tensor, Tensor]:
    """The parameter and both moments after an update; all float32 of one shape."""
    m = m * by.beta1 + g * (1 - by.beta1)
    v = v * by.beta2 + g * g * (1 - by.beta2)
    return p * by.decay - m / (exact_root(v) * by.root + by.eps) * by.rate, m, v


def exact_root(x: Tensor) -> Tensor:
    """The root of float32, rounded to nearest: torch's own on a CPU may be off by a bit."""
    return x.double().sqrt().float()


def _store(parameter: Tensor, value: Tensor, drawn: Draws) -> None:
    if parameter.dtype == torch.bfloat16:
        _, bits = draws(drawn.key, drawn.first, parameter.numel(), parameter.device)
        value = round_stochastically(value, bits)
    parameter.copy_(value)


def _fits(parameter: Tensor, gradient: Tensor) -> bool:
    """Whether kernels can read them."""
    plain = parameter.is_contiguous() and gradient.is_contiguous() and parameter.dtype == gradient.dtype
    return plain and supports(parameter, gradient)
