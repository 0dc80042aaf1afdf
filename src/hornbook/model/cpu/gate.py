"""SwiGLU's product: y = silu(gate) * up, where gate and up lie side by side, as one matrix product leaves them.

With s = sigmoid(gate): d gate = dy up s (1 + gate (1 - s)), d up = dy gate s; written side by side too.
"""

import numpy as np
import torch
from torch import Tensor

from hornbook.kernels.scalar import exponential, load, store
from hornbook.kernels.team import Kernel, is_bf16, launch
from hornbook.model.layers.products import input_gradient, linear, weight_gradient


class SwiGLUFunction(torch.autograd.Function):
    """[..., 2 hidden] (gate, up) -> [..., hidden]."""

    @staticmethod
    def forward(ctx, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        return swiglu(gate_up)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (gate_up,) = ctx.saved_tensors
        return swiglu_backward_(gate_up, grads[0].clone(memory_format=torch.contiguous_format))


class SwiGLUDown(torch.autograd.Function):
    """[..., 2 hidden] (gate, up), weight [width, hidden] -> silu(gate) up W^T [..., width].

    The product of gate and up is not kept: backward computes it again in the pass that makes the gradients, which costs
    little and saves a third of what the MLP would hold.
    """

    @staticmethod
    def forward(ctx, gate_up: Tensor, weight: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up, weight)
        return linear(swiglu(gate_up), weight)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        gate_up, weight = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        y = input_gradient(grad, weight)
        d_gate_up = swiglu_backward_(gate_up, y)
        return d_gate_up, weight_gradient(grad, y) if ctx.needs_input_grad[1] else None


def swiglu(gate_up: Tensor) -> Tensor:
    """Of contiguous gate and up, silu(gate) * up."""
    hidden = gate_up.shape[-1] // 2
    y = gate_up.new_empty(*gate_up.shape[:-1], hidden)
    launch(_forward_kernel, y.numel() // hidden, is_bf16(y), hidden, gate_up, y)
    return y


def swiglu_backward_(gate_up: Tensor, dy: Tensor) -> Tensor:
    """Gradient of gate and up, side by side, from contiguous dy, in whose place silu(gate) * up is written."""
    d_gate_up, hidden = torch.empty_like(gate_up), dy.shape[-1]
    launch(_backward_kernel, dy.numel() // hidden, is_bf16(dy), hidden, gate_up, dy, d_gate_up)
    return d_gate_up


@Kernel
def _forward_kernel(first, last, _chunk, a, values):
    hidden, gate_up, y = a[1], values(a[2]), values(a[3])
    for row in range(first, last):
        start, middle, end = 2 * row * hidden, (2 * row + 1) * hidden, (2 * row + 2) * hidden
        gate_row, up_row, y_row = gate_up[start:middle], gate_up[middle:end], y[row * hidden : (row + 1) * hidden]
        for j in range(hidden):
            gate = load(gate_row, j)
            store(y_row, j, gate / (np.float32(1) + exponential(-gate)) * load(up_row, j))


@Kernel
def _backward_kernel(first, last, _chunk, a, values):
    hidden, gate_up, dy, d_gate_up, one = a[1], values(a[2]), values(a[3]), values(a[4]), np.float32(1)
    for row in range(first, last):
        start, middle, end = 2 * row * hidden, (2 * row + 1) * hidden, (2 * row + 2) * hidden
        gate_row, up_row, dy_row = gate_up[start:middle], gate_up[middle:end], dy[row * hidden : (row + 1) * hidden]
        d_gate_row, d_up_row = d_gate_up[start:middle], d_gate_up[middle:end]
        for j in range(hidden):
            gate, up, grad = load(gate_row, j), load(up_row, j), load(dy_row, j)
            sigmoid = one / (one + exponential(-gate))
            silu = gate * sigmoid
            store(d_gate_row, j, grad * up * (sigmoid + silu * (one - sigmoid)))
            store(d_up_row, j, grad * silu)
            store(dy_row, j, silu * up)
