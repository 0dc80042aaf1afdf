"""What stands between the matrix products of a mixture of experts: gates times routing weights, and sums over experts.

With h = silu(gate) up and s = sigmoid(gate), an expert's output is y = W (w h) for a routing weight w. Given
g = W^T dy: dw = sum(g h), d gate = w g up s (1 + gate (1 - s)), d up = w g gate s; none of it needs y.
"""

import numpy as np
import torch
from torch import Tensor

from hornbook.kernels.scalar import exponential, f32, i64, load, store
from hornbook.kernels.team import Kernel, chunks, is_bf16, launch


def weighted_swiglu(gate_up: Tensor, weights: Tensor) -> Tensor:
    """Gate and up side by side [rows, 2 hidden], weights [rows] float32 -> w silu(gate) up [rows, hidden]."""
    rows, hidden = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty(rows, hidden)
    launch(_gate_kernel, rows, is_bf16(y), hidden, gate_up, weights, y)
    return y


def weighted_swiglu_backward(gate_up: Tensor, weights: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `gate_up` and of `weights`, and once more w silu(gate) up.

    g: [rows, hidden], the gradient of silu(gate) up before it is weighted.
    """
    rows, hidden = g.shape
    d_gate_up, d_weights, y = torch.empty_like(gate_up), torch.empty_like(weights), torch.empty_like(g)
    launch(_gate_backward_kernel, rows, is_bf16(g), hidden, gate_up, weights, g, d_gate_up, d_weights, y)
    return d_gate_up, d_weights, y


def sum_rows(rows: Tensor, slots: Tensor) -> Tensor:
    """For each token the sum of some rows [rows, width]: those in `slots` [tokens, active] int64, -1 for none."""
    (tokens, active), width = slots.shape, rows.shape[1]
    y, scratch = rows.new_empty(tokens, width), torch.empty(chunks(tokens), width)
    launch(_sum_kernel, tokens, is_bf16(rows), width, active, rows, slots, y, scratch)
    return y


@Kernel
def _gate_kernel(first, last, _chunk, a, values):
    hidden, gate_up, weights, y = a[1], values(a[2]), f32(a[3]), values(a[4])
    for row in range(first, last):
        start, middle, end = 2 * row * hidden, (2 * row + 1) * hidden, (2 * row + 2) * hidden
        gate_row, up_row, y_row = gate_up[start:middle], gate_up[middle:end], y[row * hidden : (row + 1) * hidden]
        weight = weights[row]
        for j in range(hidden):
            gate = load(gate_row, j)
            store(y_row, j, gate / (np.float32(1) + exponential(-gate)) * load(up_row, j) * weight)


@Kernel
def _gate_backward_kernel(first, last, _chunk, a, values):
    hidden, gate_up, weights, g = a[1], values(a[2]), f32(a[3]), values(a[4])
    d_gate_up, d_weights, y, one = values(a[5]), f32(a[6]), values(a[7]), np.float32(1)
    for row in range(first, last):
        start, middle, end = 2 * row * hidden, (2 * row + 1) * hidden, (2 * row + 2) * hidden
        gate_row, up_row, g_row = gate_up[start:middle], gate_up[middle:end], g[row * hidden : (row + 1) * hidden]
        d_gate_row, d_up_row = d_gate_up[start:middle], d_gate_up[middle:end]
        y_row, weight = y[row * hidden : (row + 1) * hidden], weights[row]
        total = np.float32(0)
        for j in range(hidden):
            gate = load(gate_row, j)
            total += gate / (one + exponential(-gate)) * load(up_row, j) * load(g_row, j)
        d_weights[row] = total
        for j in range(hidden):
            gate, up, grad = load(gate_row, j), load(up_row, j), load(g_row, j) * weight
            sigmoid = one / (one + exponential(-gate))
            store(y_row, j, gate * sigmoid * up * weight)
            store(d_gate_row, j, grad * up * sigmoid * (one + gate * (one - sigmoid)))
            store(d_up_row, j, grad * gate * sigmoid)


@Kernel
def _sum_kernel(first, last, chunk, a, values):
    width, active, rows, slots, y = a[1], a[2], values(a[3]), i64(a[4]), values(a[5])
    scratch = f32(a[6])[chunk * width : (chunk + 1) * width]  # sums in float32, whatever the dtype
    for token in range(first, last):
        y_row = y[token * width : (token + 1) * width]
        for j in range(width):
            scratch[j] = np.float32(0)
        for i in range(active):
            slot = slots[token * active + i]
            if slot >= 0:
                row = rows[slot * width : (slot + 1) * width]
                for j in range(width):
                    scratch[j] += load(row, j)
        for j in range(width):
            store(y_row, j, scratch[j])
