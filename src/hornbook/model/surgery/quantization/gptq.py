"""Rounding that makes good its own errors on some text: GPTQ (Frantar et al. 2022, arXiv 2210.17323).

With H = X^T X of a layer's inputs X, rounding W to Q changes its outputs by tr(D H D^T), D = W - Q. Inputs are rounded
one after the other; when input j of a row is, those that are left, F, move by

    -(w_j - q_j) / [H_F^-1]_jj  (H_F^-1)_j:                                                      (equation 2)

which is the best that they can do. With H^-1 = U^T U, U upper triangular, row j of U divided by U_jj is row j of
H_F^-1 divided by its own diagonal entry (section 4, step 3), so H is inverted once. A share of the mean of its diagonal
is added to H first. Inputs are taken in their order, or those of the largest diagonal entry first (`act_order`).
"""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.config.surgery_config import Grid
from hornbook.model.surgery.quantization.integers import Quantized, encode, ranges, shares

DAMPING = 0.01
"""Share of the mean of H's diagonal that is added to it."""
MOST_DAMPING = 1.0
BLOCK = 128
"""Inputs whose errors reach the inputs behind them in one product (lazy batches, section 4, step 2)."""


def gptq(
    weight: Float[Tensor, "outputs inputs"],
    moments: Float64[Tensor, "inputs inputs"],
    grid: Grid,
    *,
    act_order: bool = False,
    damping: float = DAMPING,
) -> Quantized:
    """Round a matrix to `grid`; moments: H up to a factor.

    Groups get their range when they are reached, from the weights as they have moved by then. With `act_order` a
    group's inputs are not taken together, so there it is that of the weights before. Raises UsageError where H has no
    inverse.
    """
    left = weight.detach().float().clone()
    inputs, size = left.shape[1], grid.group if grid.per == "group" else left.shape[1]
    order = moments.diagonal().argsort(descending=True, stable=True) if act_order else torch.arange(inputs)
    order = order.to(left.device)
    moved = grid.per == "group" and not act_order
    factor = _factor(moments[order][:, order], damping).to(left.device, torch.float32)
    left, found = left[:, order], _Found(left, grid, size)
    step = max(BLOCK // size, 1) * size if moved else BLOCK
    for first in range(0, inputs, step):
        block, rows = left[:, first : first + step], factor[first : first + step, first:]
        errors = torch.zeros_like(block)
        for here in range(block.shape[1]):
            source = first + here
            if moved and source % size == 0:
                found.measure(source // size, block[:, here : here + size])
            value = found.take(int(order[source]), block[:, here])
            errors[:, here] = (block[:, here] - value) / rows[here, here]
            block[:, here + 1 :] -= errors[:, here, None] * rows[here, here + 1 : block.shape[1]]
        left[:, first + step :] -= errors @ rows[:, block.shape[1] :]
    return found.quantized()


class _Found:
    """Codes and ranges so far."""

    def __init__(self, weight: Float[Tensor, "outputs inputs"], grid: Grid, size: int) -> None:
        self._grid, self._size = grid, size
        self._codes = torch.zeros(weight.shape, dtype=torch.int8 if grid.symmetric else torch.uint8)
        self._codes = self._codes.to(weight.device)
        scale, zero = ranges(shares(weight, grid), grid)
        # [1 or outputs, groups]: column g is the range of the inputs g * size to (g + 1) * size
        groups = weight.shape[1] // size
        self._scale, self._zero = scale.reshape(-1, groups), None if zero is None else zero.reshape(-1, groups)

    def measure(self, group: int, values: Float[Tensor, "outputs size"]) -> None:
        """Take the range of a group from its present values."""
        scale, zero = ranges(values, self._grid)
        self._scale[:, group] = scale[:, 0]
        if self._zero is not None and zero is not None:
            self._zero[:, group] = zero[:, 0]

    def take(self, column: int, values: Float[Tensor, " outputs"]) -> Float[Tensor, " outputs"]:
        """Round one input of all rows; returns what its codes stand for."""
        group = column // self._size
        scale, zero = self._scale[:, group], None if self._zero is None else self._zero[:, group]
        codes = encode(values, (scale, zero), self._grid)
        self._codes[:, column] = codes
        return (codes.float() if zero is None else codes - zero) * scale

    def quantized(self) -> Quantized:
        """All of it."""
        return Quantized(
            self._codes, self._scale.reshape(-1, 1), None if self._zero is None else self._zero.reshape(-1, 1)
        )


def _factor(moments: Float64[Tensor, "inputs inputs"], damping: float) -> Float64[Tensor, "inputs inputs"]:
    """U with (H + damping)^-1 = U^T U; damping grows tenfold until there is one."""
    mean = float(moments.diagonal().mean()) or 1.0  # inputs that are always 0 are rounded to nearest
    identity = torch.eye(len(moments), dtype=torch.float64, device=moments.device)
    while damping <= MOST_DAMPING:
        lower, failed = torch.linalg.cholesky_ex(moments + damping * mean * identity)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return upper
        damping *= 10
    raise UsageError("the second moments of a layer's inputs have no inverse: calibrate on more text")


def output_error(
    weight: Float[Tensor, "outputs inputs"],
    instead: Float[Tensor, "outputs inputs"],
    moments: Float64[Tensor, "inputs inputs"],
) -> float:
    """How far outputs with another matrix are from those with `weight`: L2 norm relative to theirs."""
    apart, whole = (((each @ moments) * each).sum() for each in ((weight - instead).double(), weight.double()))
    return float((apart / whole).sqrt()) if float(whole) > 0 else 0.0
