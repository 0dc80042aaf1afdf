"""What low-rank adapters add to the outputs of layers: y += s B A x, in place, with gradients of our own.

The products are narrow: a rank of 16 beside widths of hundreds. Written out, each would be followed by passes over
tensors of the output's size (times s, plus y, beside its neighbours), which take longer than it does. Here the layers
over one input share the product with A, and each adds to its own columns of what their common product made.

With D = A x^T [ranks, tokens], the narrow side first, as oneDNN takes it without a copy of the wide one, and
E = (s B)^T g^T the gradient of D: d B = s g^T D^T, d A = E x, d x = E^T A.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model.layers.products import crossed, matmul


class Update(NamedTuple):
    """s B A, which an adapter adds to a layer's matrix."""

    a: Float[Tensor, "rank inputs"]
    b: Float[Tensor, "outputs rank"]
    factor: float


def update_of(adapter: nn.Module | None) -> Update | None:
    """What an adapter adds, where that is all it does."""
    return None if torch.compiler.is_compiling() else getattr(adapter, "low_rank", None)


def add_updates(
    x: Float[Tensor, "*batch inputs"], y: Float[Tensor, "*batch outputs"], updates: Sequence[tuple[int, Update]]
) -> Float[Tensor, "*batch outputs"]:
    """y with each update, which begins at its column, added to it; y itself may be overwritten."""
    places = [(first, first + len(update.b), update.factor) for first, update in updates]
    matrices = [matrix for _, update in updates for matrix in update[:2]]
    if torch.is_grad_enabled():
        return AddLowRank.apply(y.contiguous(), x, places, *matrices)
    return _added(y.contiguous(), x, places, matrices)[0]


Places = Sequence[tuple[int, int, float]]
"""First column, one past the last, and the factor of each update."""


def _added(y: Tensor, x: Tensor, places: Places, matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """y, to which the updates were added, and D."""
    rows, out = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    inner = crossed(torch.cat(list(matrices[::2])).to(x.dtype), rows, len(rows))
    parts = inner.split([len(a) for a in matrices[::2]])
    for part, b, (first, last, factor) in zip(parts, matrices[1::2], places, strict=True):
        scaled, columns = (b * factor).to(x.dtype), out[:, first:last]
        if x.dtype == torch.float32:
            columns.addmm_(part.T, scaled.T)
        else:
            columns += crossed(part.T, scaled, len(rows))
    return y, inner


class AddLowRank(torch.autograd.Function):
    """y [..., outputs], x [..., inputs], places, A and B of each update in turn -> y, changed in place."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, places: Places, *matrices: Tensor) -> Tensor:
        # An alias: what made y keeps none of it, and autograd refuses to change what a function of our own gave.
        y, inner = _added(y.detach(), x, places, matrices)
        ctx.save_for_backward(x, inner, *matrices)
        ctx.places = places
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, inner, *matrices = ctx.saved_tensors
        all_a, all_b = matrices[::2], matrices[1::2]
        rows, grad, ranks = x.reshape(-1, x.shape[-1]), grads[0].flatten(0, -2), [len(a) for a in all_a]
        d_inner = torch.empty_like(inner)
        d_b: list[Tensor] = []
        parts = zip(inner.split(ranks), d_inner.split(ranks), all_b, ctx.places, strict=True)
        for part, d_part, b, (first, last, factor) in parts:
            columns = grad[:, first:last]
            d_part.copy_(matmul(columns, (b * factor).to(grad.dtype)).T)
            d_b.append((matmul(part, columns).T * factor).to(b.dtype))
        d_a = crossed(d_inner, rows.T, len(rows)).split(ranks)
        d_matrices = [each for a, d, b in zip(all_a, d_a, d_b, strict=True) for each in (d.to(a.dtype), b)]
        d_x = None
        if ctx.needs_input_grad[1]:
            d_x = crossed(d_inner.T, torch.cat(all_a).to(grad.dtype).T, len(rows)).view(x.shape)
        return grads[0], d_x, None, *d_matrices
