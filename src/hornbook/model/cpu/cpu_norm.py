"""RMSNorm as two kernels: each reads a row once from memory and keeps it in cache for its second pass.

With s = 1 / sqrt(mean(x^2) + eps): y = x s w, and dx = s (w dy) - x s^3 mean(x w dy), dw = sum over rows of x s dy.
"""

import numpy as np
import torch
from torch import Tensor

from hornbook.kernels.scalar import f32, load, store
from hornbook.kernels.team import Kernel, chunks, float_argument, is_bf16, launch


class RMSNormFunction(torch.autograd.Function):
    """x [..., width], weight [width] -> normalised x, of x's dtype."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        y, scales = torch.empty_like(x), torch.empty(rows)
        launch(_forward_kernel, rows, is_bf16(x), width, eps, x, weight.detach().float(), y, scales)
        ctx.save_for_backward(x, weight, scales)
        return y

    @staticmethod
    def backward(ctx, *grads: Tensor):
        x, weight, scales = ctx.saved_tensors
        dy = grads[0].contiguous()
        width, rows = x.shape[-1], len(scales)
        dx, partial = torch.empty_like(x), torch.zeros(chunks(rows), width)
        launch(_backward_kernel, rows, is_bf16(x), width, x, weight.detach().float(), scales, dy, dx, partial)
        return dx, partial.sum(0), None


@Kernel
def _forward_kernel(first, last, _chunk, a, values):
    width, eps = a[1], float_argument(a, 2)
    x, weight, y, scales = values(a[3]), f32(a[4]), values(a[5]), f32(a[6])
    for row in range(first, last):
        start, end = row * width, (row + 1) * width
        x_row, y_row = x[start:end], y[start:end]
        total = np.float32(0)
        for j in range(width):
            value = load(x_row, j)
            total += value * value
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + eps)
        scales[row] = scale
        for j in range(width):
            store(y_row, j, load(x_row, j) * scale * weight[j])


@Kernel
def _backward_kernel(first, last, chunk, a, values):
    width, x, weight, scales, dy, dx = a[1], values(a[2]), f32(a[3]), f32(a[4]), values(a[5]), values(a[6])
    # Each chunk adds up a row of its own: the sum over chunks does not depend on which thread took which.
    partial = f32(a[7])[chunk * width : (chunk + 1) * width]
    for row in range(first, last):
        start, end = row * width, (row + 1) * width
        x_row, dy_row, dx_row = x[start:end], dy[start:end], dx[start:end]
        scale = scales[row]
        inner = np.float32(0)
        for j in range(width):
            inner += load(x_row, j) * load(dy_row, j) * weight[j]
        back = inner * scale * scale * scale / np.float32(width)
        for j in range(width):
            value, grad = load(x_row, j), load(dy_row, j)
            partial[j] += value * grad * scale
            store(dx_row, j, scale * weight[j] * grad - back * value)
