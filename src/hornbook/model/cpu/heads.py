"""From the fused projection to heads, turned: one pass instead of split, transpose, rotate and copy.

[batch, time, (heads + 2 kv_heads) dim] -> query [batch, heads, time, dim], key and value [batch, kv_heads, time, dim],
queries and keys rotated (`hornbook.model.attention.position`), all of their dims, the first ones, or none;
backward turns by the opposite angle into one tensor again.
"""

import torch
from numba import njit
from torch import Tensor

from hornbook.kernels.scalar import OPTIONS, f32, load, store
from hornbook.kernels.team import Kernel, is_bf16, launch


class SplitHeads(torch.autograd.Function):
    """Fused projection, numbers of heads, cosines and sines [1 or batch, time, pairs], whether pairs are neighbours
    -> query, key, value."""

    @staticmethod
    def forward(
        ctx, fused: Tensor, heads: tuple[int, int], cos: Tensor, sin: Tensor, neighbours: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, time, width = fused.shape
        dim = width // (heads[0] + 2 * heads[1])
        parts = [fused.new_empty(batch, count, time, dim) for count in (heads[0], heads[1], heads[1])]
        _run(fused.contiguous(), parts, cos, sin, 1.0, 0, neighbours)
        ctx.save_for_backward(cos, sin)
        ctx.neighbours = neighbours
        return parts[0], parts[1], parts[2]

    @staticmethod
    def backward(ctx, *grads: Tensor):
        cos, sin = ctx.saved_tensors
        parts = [grad.contiguous() for grad in grads]
        batch, heads, time, dim = parts[0].shape
        fused = parts[0].new_empty(batch, time, (heads + 2 * parts[1].shape[1]) * dim)
        _run(fused, parts, cos, sin, -1.0, 1, ctx.neighbours)
        return fused, None, None, None, None


def _run(
    fused: Tensor, parts: list[Tensor], cos: Tensor, sin: Tensor, sign: float, merge: int, neighbours: bool
) -> None:
    batch, heads, time, dim = parts[0].shape
    pairs = cos.shape[2]
    assert 2 * pairs <= dim
    shape = (time, heads, parts[1].shape[1], dim, 0 if cos.shape[0] == 1 else time, pairs, int(neighbours))
    signed = (sin * sign).contiguous()
    launch(_kernel, batch * time, is_bf16(fused), merge, *shape, fused, *parts, cos.contiguous(), signed)


@njit(inline="always", **OPTIONS)
def _turn(source, target, cos, sin, pairs, step, apart):
    """Pair j are the values at j * step and `apart` behind it."""
    for j in range(pairs):
        a, b = load(source, j * step), load(source, j * step + apart)
        store(target, j * step, a * cos[j] - b * sin[j])
        store(target, j * step + apart, b * cos[j] + a * sin[j])


@Kernel
def _kernel(first, last, _chunk, a, values):
    merge, time, heads, kv_heads, dim, turns, half, neighbours = a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]
    fused, query, key, value = values(a[9]), values(a[10]), values(a[11]), values(a[12])
    cos, sin = f32(a[13]), f32(a[14])
    width = (heads + 2 * kv_heads) * dim
    for row in range(first, last):
        batch, position = row // time, row % time
        angle = (batch * turns + position) * half
        c, s = cos[angle : angle + half], sin[angle : angle + half]
        for head in range(heads + 2 * kv_heads):
            whole = fused[row * width + head * dim : row * width + (head + 1) * dim]
            if head < heads:
                part, index = query, batch * heads + head
            elif head < heads + kv_heads:
                part, index = key, batch * kv_heads + head - heads
            else:
                part, index = value, batch * kv_heads + head - heads - kv_heads
            here = part[(index * time + position) * dim : (index * time + position + 1) * dim]
            source, target = (here, whole) if merge else (whole, here)
            rotary_dim = 2 * half if head < heads + kv_heads else 0
            # Written twice with constants, so that each becomes a loop that vectorises.
            if rotary_dim and neighbours:
                _turn(source, target, c, s, half, 2, 1)
            elif rotary_dim:
                _turn(source, target, c, s, half, 1, half)
            for j in range(rotary_dim, dim):
                target[j] = source[j]
