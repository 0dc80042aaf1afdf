"""Products of a mixture of experts: tokens sorted by expert, then one product per expert.

For token t, its chosen experts e and routing weights w:

    y_t = sum over e of  down_e (w_te  activation(gate_e x_t) * up_e x_t)                                          (1)

Sorting puts the tokens of each expert side by side, so (1) is three products per expert with the expert's own matrices
and one sum over each token's experts. No token is looked at from Python, no product is padded, and what is added up is
gathered, never scattered: results do not depend on the order of threads. The idea is MegaBlocks' (Gale et al. 2022,
arXiv 2211.15841) without its blocks.

`GroupedSwiGLU` is the way on CPUs: it keeps gate and up of what was served and nothing else, and reads float32 weights
expert by expert, so that no copy of all experts in bfloat16 is made or kept. On GPUs torch's grouped product does the
same from one launch.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from hornbook.kernels.team import supports
from hornbook.kernels.torch_versions import uncompiled
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.cpu.cpu_experts import sum_rows, weighted_swiglu, weighted_swiglu_backward
from hornbook.model.layers.products import linear, matmul, mm_into
from hornbook.model.mlp.mlp import Blend, activate


class Weights(NamedTuple):
    """The matrices of all experts."""

    gate: Float[Tensor, "experts hidden width"]
    up: Float[Tensor, "experts hidden width"]
    down: Float[Tensor, "experts width hidden"]


class DispatchPlan(NamedTuple):
    """How choices (token, expert) are sorted; those of no expert come last."""

    order: Int[Tensor, " choices"]
    """The choices, numbered token by token, in the order of their experts."""
    slots: Int[Tensor, "tokens active"]
    """Where each choice stands in that order."""
    counts: Int[Tensor, " experts"]
    """Choices of each expert."""


def make_plan(experts: Int[Tensor, "tokens active"], count: int) -> DispatchPlan:
    """Sort choices; an expert number of `count` means none."""
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    slots = torch.empty_like(order)
    slots[order] = torch.arange(len(order), device=order.device)
    # One more than there are experts takes the choices of none.
    counts = torch.zeros(count + 1, dtype=torch.int64, device=flat.device)
    counts = counts.scatter_add_(0, flat, torch.ones_like(flat))
    return DispatchPlan(order, slots.view_as(experts), counts[:count])


class GroupedProduct(Protocol):
    """`grouped_glu`, or what stands in for it."""

    def __call__(
        self,
        x: Float[Tensor, "tokens width"],
        experts: Int[Tensor, "tokens active"],
        weights: Float[Tensor, "tokens active"],
        matrices: Weights,
        activation: config_mlp.Activation | Blend = ...,
        /,
    ) -> Float[Tensor, "tokens width"]:
        """What the chosen experts answer, in sum."""
        ...


def grouped_glu(
    x: Float[Tensor, "tokens width"],
    experts: Int[Tensor, "tokens active"],
    weights: Float[Tensor, "tokens active"],
    matrices: Weights,
    activation: config_mlp.Activation | Blend = "silu",
) -> Float[Tensor, "tokens width"]:
    """Equation (1). An expert number equal to the number of experts means none: it adds nothing."""
    plan = make_plan(experts, len(matrices.gate))
    if multiplies_groups(x):
        return _by_grouped_products(x, weights, matrices, activation, plan)
    return _by_segments(x, weights, matrices, activation, plan)


def multiplies_groups(x: Tensor) -> bool:
    """Whether the device has grouped products of this dtype that read the sizes of groups themselves."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


@uncompiled
def _by_segments(
    x: Tensor, weights: Tensor, matrices: Weights, activation: config_mlp.Activation | Blend, plan: DispatchPlan
) -> Float[Tensor, "tokens width"]:
    """One product per expert; how many tokens it has is known to Python, so nothing here can be traced."""
    if activation == "silu" and supports(x, *matrices):
        return GroupedSwiGLU.apply(x, weights, *matrices, plan)
    counts = plan.counts.tolist()
    order = plan.order[: sum(counts)]
    rows = x.index_select(0, order // plan.slots.shape[1])
    weights = weights.flatten().index_select(0, order).to(x.dtype)
    outputs = [
        linear(activate(linear(part, gate), activation) * linear(part, up) * weight[:, None], down)
        for part, weight, gate, up, down in zip(
            rows.split(counts), weights.split(counts), *(each.to(x.dtype) for each in matrices), strict=True
        )
    ]
    return x.new_zeros(x.shape).index_add(0, order // plan.slots.shape[1], torch.cat(outputs))


def _by_grouped_products(
    x: Tensor, weights: Tensor, matrices: Weights, activation: config_mlp.Activation | Blend, plan: DispatchPlan
) -> Float[Tensor, "tokens width"]:
    """Three launches; shapes do not depend on the routing, so nothing waits for the device."""
    gate, up, down = (each.to(x.dtype).transpose(1, 2) for each in matrices)
    ends = plan.counts.cumsum(0).to(torch.int32)
    # The product leaves rows after the last expert undefined, forward and backward.
    idle = (torch.arange(len(plan.order), device=x.device) >= ends[-1])[:, None]
    rows = x[plan.order // plan.slots.shape[1]].masked_fill(idle, 0)
    hidden = activate(F.grouped_mm(rows, gate, offs=ends), activation) * F.grouped_mm(rows, up, offs=ends)
    hidden = hidden.masked_fill(idle, 0) * weights.flatten()[plan.order][:, None].to(x.dtype)
    y = F.grouped_mm(hidden, down, offs=ends).masked_fill(idle, 0)
    return y[plan.slots].sum(1)


class GroupedSwiGLU(torch.autograd.Function):
    """x [tokens, width], weights [tokens, active], matrices, plan -> [tokens, width]; of bfloat16 or float32 on CPU."""

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor, gate: Tensor, up: Tensor, down: Tensor, plan: DispatchPlan) -> Tensor:
        segments = _Segments(plan)
        rows, weights = segments.rows(x), segments.weights(weights)
        gate_up = x.new_empty(segments.served, 2 * gate.shape[1])
        for e, part in segments.parts:
            mm_into(rows[part], _beside(gate[e], up[e], x.dtype).T, gate_up[part])
        hidden = weighted_swiglu(gate_up, weights)
        for e, part in segments.parts:
            mm_into(hidden[part], down[e].to(x.dtype).T, rows[part])
        ctx.save_for_backward(x, weights, gate, up, down, gate_up)
        ctx.segments = segments
        return sum_rows(rows, segments.slots)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        x, weights, gate, up, down, gate_up = ctx.saved_tensors
        segments, hidden = ctx.segments, gate.shape[1]
        grad = segments.rows(grads[0])
        g = gate_up.new_empty(segments.served, hidden)
        for e, part in segments.parts:
            mm_into(grad[part], down[e].to(x.dtype), g[part])
        d_gate_up, d_weights, y = weighted_swiglu_backward(gate_up, weights, g)
        del g
        d_down = _products(grad, y, segments, down)
        del y
        for e, part in segments.parts:
            mm_into(d_gate_up[part], _beside(gate[e], up[e], x.dtype), grad[part])
        dx = sum_rows(grad, segments.slots)
        rows = segments.rows(x, out=grad)
        d_gate = _products(d_gate_up[:, :hidden], rows, segments, gate)
        d_up = _products(d_gate_up[:, hidden:], rows, segments, up)
        return dx, segments.unsorted(d_weights), d_gate, d_up, d_down, None


class _Segments:
    """A plan whose counts Python knows: (expert, rows) of every expert that serves anything, and the `idle` ones."""

    def __init__(self, plan: DispatchPlan) -> None:
        counts = plan.counts.tolist()
        ends = plan.counts.cumsum(0).tolist()
        self.served = ends[-1]
        self.parts = [(e, slice(end - n, end)) for e, (n, end) in enumerate(zip(counts, ends, strict=True)) if n]
        self.idle = [e for e, n in enumerate(counts) if n == 0]
        self._order = plan.order[: self.served]
        self._tokens = self._order // plan.slots.shape[1]
        self.slots = plan.slots.where(plan.slots < self.served, -1)

    def rows(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The token of each choice [served, width]."""
        out = x.new_empty(self.served, x.shape[1]) if out is None else out
        return torch.index_select(x, 0, self._tokens, out=out)

    def weights(self, weights: Tensor) -> Tensor:
        """The routing weight of each choice [served], float32."""
        return weights.flatten().index_select(0, self._order).float()

    def unsorted(self, values: Tensor) -> Tensor:
        """Of values [served], those of each token's choices [tokens, active]; 0 where none was served."""
        return values.new_zeros(self.slots.shape).flatten().index_copy(0, self._order, values).view_as(self.slots)


def _beside(gate: Tensor, up: Tensor, dtype: torch.dtype) -> Tensor:
    """Gate and up of one expert as one matrix [2 hidden, width]: one product instead of two."""
    return torch.cat([gate.to(dtype), up.to(dtype)])


def _products(left: Tensor, right: Tensor, segments: _Segments, like: Tensor) -> Tensor:
    """left^T right of every expert [experts, ...], in the shape and dtype of the matrices whose gradients they are."""
    found = torch.empty_like(like)
    for e, part in segments.parts:
        if like.dtype == left.dtype:
            torch.mm(left[part].T, right[part], out=found[e])
        else:
            found[e].copy_(matmul(left[part].T, right[part]))
    for e in segments.idle:
        found[e].zero_()
    return found
