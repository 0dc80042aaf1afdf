"""Which experts serve a token, and how much each counts: softmax, sigmoid with a bias, Switch.

For a token x and router weights W [experts, width], with logits z = W x (float32 arithmetic in every precision):

    softmax   s = softmax(z);  chosen: the k largest of s;                  weights: s of the chosen        (1)
    sigmoid   s = sigmoid(z);  chosen: the k largest of s + bias, in the best groups;  weights: s           (2)
    Switch    as softmax with k = 1                                                                         (3)

(1) is Mixtral's (arXiv 2401.04088) and OLMoE's router, (2) DeepSeek-V3's (arXiv 2412.19437, equations 12-16), (3) Fedus
et al. 2021 (arXiv 2101.03961). The bias of (2) takes part in the choice only: no gradient reaches it, and after each
step it moves against the excess load (`load_direction`; Wang et al. 2024, arXiv 2408.15664).
"""

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.forward_context import Context
from hornbook.model.layers.dropout import SITES, layer_number, site_keys, uniform
from hornbook.model.layers.norm import widened

JITTER_SITE = SITES - 1
"""Dropout site of a layer by which jitter is keyed."""
LEAST_SUM = 1e-20
"""Added to a sum of sigmoid scores before dividing by it."""


class Routing(NamedTuple):
    """What a router says of every token; numbers are float32 at least."""

    experts: Int[Tensor, "batch time active"]
    """The chosen experts, best first."""
    weights: Float[Tensor, "batch time active"]
    """How much each counts."""
    scores: Float[Tensor, "batch time experts"]
    """Scores of all experts, summing to 1: what the balance loss is about."""
    logits: Float[Tensor, "batch time experts"]


class RouterProduct(torch.autograd.Function):
    """x [..., width] of any precision, weight [experts, width] -> logits, computed in float32 at least.

    The widened x is not kept: backward makes it again.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        wide = widened(x)
        return F.linear(wide, weight.to(wide.dtype))

    @staticmethod
    def backward(ctx, *grads: Tensor):
        x, weight = ctx.saved_tensors
        grad = grads[0]
        d_weight = grad.flatten(0, -2).T @ x.flatten(0, -2).to(grad.dtype)
        return (grad @ weight.to(grad.dtype)).to(x.dtype), d_weight.to(weight.dtype)


class Router(nn.Module):
    """Logits of every expert, from inputs that jitter may disturb in training."""

    role: ClassVar = "matrix"

    def __init__(self, width: int, cfg: config_mlp.ExpertsConfig, layer: int) -> None:
        super().__init__()
        for key, text in cfg.problems():
            raise UsageError(f"model.{key}: {text}")
        self.cfg: Any = cfg.router
        """Settings of the kind of router that the subclass is."""
        self.active, self.number = cfg.active, layer_number(layer)
        self.weight = nn.Parameter(torch.empty(cfg.count, width))

    def logits(
        self, x: Float[Tensor, "batch time width"], context: Context, jitter: float = 0.0
    ) -> Float[Tensor, "batch time experts"]:
        if jitter and context.keys is not None:
            hashes = site_keys(context.keys, self.number, JITTER_SITE)
            part, (time, width) = context.mask.part, x.shape[1:]
            runs = [range(time)] if part is None else part.runs(0, time)
            noise = torch.cat([uniform(hashes, run, range(width), width) for run in runs], 1)
            x = widened(x) * (1 - jitter + 2 * jitter * noise)
        return RouterProduct.apply(x, self.weight)


class SoftmaxRouter(Router):
    """Equation (1)."""

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Routing:
        logits = self.logits(x, context, self.cfg.jitter)
        scores = logits.softmax(-1)
        weights, experts = scores.topk(self.active, -1)
        if self.cfg.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return Routing(experts, weights, scores, logits)


class SwitchRouter(Router):
    """Equation (3)."""

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Routing:
        logits = self.logits(x, context, self.cfg.jitter)
        scores = logits.softmax(-1)
        weights, experts = scores.max(-1, keepdim=True)
        return Routing(experts, weights, scores, logits)


class SigmoidRouter(Router):
    """Equation (2); `bias` [experts] takes no gradient."""

    def __init__(self, width: int, cfg: config_mlp.ExpertsConfig, layer: int) -> None:
        super().__init__(width, cfg, layer)
        self.rate = float(self.cfg.balance_rate)
        self.bias = nn.Parameter(torch.empty(cfg.count), requires_grad=False)

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Routing:
        logits = self.logits(x, context)
        scores = logits.sigmoid()
        experts = self._choice(scores.detach() + self.bias)
        weights = scores.gather(-1, experts)
        if self.cfg.renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
        return Routing(experts, weights * self.cfg.scale, scores / scores.sum(-1, keepdim=True), logits)

    def _choice(self, scores: Float[Tensor, "batch time experts"]) -> Int[Tensor, "batch time active"]:
        if self.cfg.groups > 1:
            grouped = scores.unflatten(-1, (self.cfg.groups, -1))
            best = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1).topk(self.cfg.groups_active, -1).indices
            closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, False)
            scores = grouped.masked_fill(closed[..., None], -torch.inf).flatten(-2)
        return scores.topk(self.active, -1).indices


def load_direction(loads: Int[Tensor, " experts"]) -> Float[Tensor, " experts"]:
    """Where a bias moves after a step: 1 where an expert had less than the mean load, -1 where it had more, else 0.

    loads: tokens each expert was chosen for in the whole global batch. Compared as integers, so nothing is rounded.
    """
    return torch.sign(loads.sum() - loads * len(loads)).float()
