"""Updates of float32 parameters in one pass over memory, on a CPU; elsewhere the rules' own functions of torch.

They are compiled without reordering or contracting anything (`EXACT`), so any vectors, any cut of a parameter and any
number of threads give the same bits. Beside torch's functions the last bits differ.
"""

import numpy as np
from torch import Tensor

from hornbook.kernels.scalar import EXACT
from hornbook.kernels.team import Kernel, float_argument, launch, supports

RUN = 1024
"""A kernel's row is so many values."""


def fits(*tensors: Tensor) -> bool:
    """Whether kernels can update them: contiguous float32 on a CPU."""
    return supports(*tensors) and all(each.is_contiguous() and each.element_size() == 4 for each in tensors)


def _launch(kernel: Kernel, *arguments: Tensor | float) -> None:
    first = arguments[0]
    assert isinstance(first, Tensor)
    launch(kernel, -(-first.numel() // RUN), 0, first.numel(), *arguments)


def lion(p: Tensor, g: Tensor, m: Tensor, lr: float, decay: float, betas: tuple[float, float]) -> None:
    """`LionUpdate`: p and m in place."""
    _launch(lion_kernel, p, g, m, 1 - lr * decay, lr, 1 - betas[0], 1 - betas[1])


def schedule_free(y: Tensor, g: Tensor, z: Tensor, v: Tensor, by: tuple[float, ...]) -> None:
    """`ScheduleFreeUpdate` with a second moment: y, z and v in place.

    `by`: beta2, 1 - beta2, one over the bias, eps, weight decay, share of z in y, factor on y's step, learning rate.
    """
    _launch(schedule_free_kernel, y, g, z, v, *by)


def lamb(u: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor, by: tuple[float, ...]) -> None:
    """`LAMBUpdate` before its scale: m and v in place, the update to u.

    `by`: 1 - beta1, beta2, 1 - beta2, one over the first bias, one over the second, eps, weight decay.
    """
    _launch(lamb_kernel, u, p, g, m, v, *by)


def _lion(first, last, _chunk, a, values):
    count, p, g, m = a[1], values(a[2]), values(a[3]), values(a[4])
    keep, lr, rest1, rest2 = float_argument(a, 5), float_argument(a, 6), float_argument(a, 7), float_argument(a, 8)
    for run in range(first, last):
        start = run * RUN
        p_run, g_run, m_run = p[start:], g[start:], m[start:]
        for j in range(min(RUN, count - start)):
            change = g_run[j] - m_run[j]
            direction = m_run[j] + change * rest1
            step = lr if direction > np.float32(0) else (-lr if direction < np.float32(0) else np.float32(0))
            p_run[j] = p_run[j] * keep - step
            m_run[j] = m_run[j] + change * rest2


def _schedule_free(first, last, _chunk, a, values):
    count, y, g, z, v = a[1], values(a[2]), values(a[3]), values(a[4]), values(a[5])
    beta2, rest2, bias, eps = float_argument(a, 6), float_argument(a, 7), float_argument(a, 8), float_argument(a, 9)
    decay, share = float_argument(a, 10), float_argument(a, 11)
    factor, lr = float_argument(a, 12), float_argument(a, 13)
    for run in range(first, last):
        start = run * RUN
        y_run, g_run, z_run, v_run = y[start:], g[start:], z[start:], v[start:]
        for j in range(min(RUN, count - start)):
            square = v_run[j] * beta2 + g_run[j] * g_run[j] * rest2
            direction = g_run[j] / (np.sqrt(square * bias) + eps) + y_run[j] * decay
            y_new = y_run[j] + (z_run[j] - y_run[j]) * share + direction * factor
            v_run[j], z_run[j], y_run[j] = square, z_run[j] - direction * lr, y_new


def _lamb(first, last, _chunk, a, values):
    count, u, p, g, m, v = a[1], values(a[2]), values(a[3]), values(a[4]), values(a[5]), values(a[6])
    rest1, beta2, rest2 = float_argument(a, 7), float_argument(a, 8), float_argument(a, 9)
    bias1, bias2, eps, decay = (
        float_argument(a, 10),
        float_argument(a, 11),
        float_argument(a, 12),
        float_argument(a, 13),
    )
    for run in range(first, last):
        start = run * RUN
        u_run, p_run, g_run, m_run, v_run = u[start:], p[start:], g[start:], m[start:], v[start:]
        for j in range(min(RUN, count - start)):
            moment = m_run[j] + (g_run[j] - m_run[j]) * rest1
            square = v_run[j] * beta2 + g_run[j] * g_run[j] * rest2
            m_run[j], v_run[j] = moment, square
            u_run[j] = moment * bias1 / (np.sqrt(square * bias2) + eps) + p_run[j] * decay


lion_kernel, schedule_free_kernel, lamb_kernel = (Kernel(each, EXACT) for each in (_lion, _schedule_free, _lamb))
