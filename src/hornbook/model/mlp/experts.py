"""A mixture of experts: a router sends each token to a few of many gated linear units (arXiv 1701.06538).

    y = sum over the chosen experts e of  w_e  down_e (activation(gate_e x) * up_e x)  +  shared(x)

The router's choice for a token depends on that token alone, so packed documents are served as separate ones are. Only
a `capacity` breaks this, in training: then each expert takes a limited number of tokens of a row (sequence), earlier
tokens come first, and the rest passes the experts by. In evaluation every token is served.

In training `forward` returns, besides y, by name:
balance, router_z: [batch], losses of each row times their weight in the config (`balance.py`); the engine
weights a row by its share of the objective, so that microbatches of any shape add up to the same number.
load.LAYER: [experts] int64, tokens each expert was chosen for; of routers whose bias follows the loads.
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.forward_context import Auxiliary, Context
from hornbook.model.mlp.balance import SumParts, balance_loss, over_capacity, router_z_loss, row_loads
from hornbook.model.mlp.grouped import GroupedProduct, Weights, grouped_glu
from hornbook.model.mlp.mlp import GLU, Blend
from hornbook.model.mlp.router import Routing, SigmoidRouter


class Experts(nn.Module):
    """The experts of a layer as three tensors, their router, and the expert that serves every token."""

    role: ClassVar = "matrix"

    auxiliary = True
    """`forward` takes the context and returns auxiliary losses."""

    def __init__(self, width: int, hidden: int, cfg: config_mlp.ExpertsConfig, layer: int) -> None:
        super().__init__()
        self.activation: config_mlp.Activation | Blend = cfg.activation
        self.capacity, self.active, self.count = cfg.capacity, cfg.active, cfg.count
        self.balance_weight, self.z_weight = float(cfg.balance_loss), float(cfg.z_loss)
        self.load_name = f"load.{layer}"
        """Under what name `forward` returns loads."""
        weights = {"balance": self.balance_weight, "router_z": self.z_weight}
        self.loss_names = [name for name, weight in weights.items() if weight]
        """Of the losses among what `forward` returns."""
        self.sum_parts: SumParts = None
        """Where the rest of the rows is elsewhere (`AttentionMask.part`): statistics of whole rows."""
        self.router = cfg.router.make(width, cfg, layer)
        self.gate = nn.Parameter(torch.empty(cfg.count, hidden, width))
        self.up = nn.Parameter(torch.empty(cfg.count, hidden, width))
        self.down = nn.Parameter(torch.empty(cfg.count, width, hidden))
        shared = config_mlp.GLUConfig(activation=cfg.activation)
        self.product: GroupedProduct = grouped_glu
        """What the experts answer together."""
        self.shared = GLU(width, cfg.shared_hidden, shared) if cfg.shared_hidden else None

    @property
    def balance_rate(self) -> float:
        """How far the router's bias moves after a step; 0: it has none, or it stays."""
        return self.router.rate if isinstance(self.router, SigmoidRouter) else 0.0

    def forward(
        self, x: Float[Tensor, "batch time width"], context: Context
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        routing = self.router(x, context)
        experts, weights = self.served(routing.experts), routing.weights
        matrices = Weights(self.gate, self.up, self.down)
        y = self.product(x.flatten(0, 1), experts.flatten(0, 1), weights.flatten(0, 1), matrices, self.activation)
        y = y.view_as(x) if self.shared is None else y.view_as(x) + self.shared(x)
        return y, self._auxiliary(routing, context) if self.training else {}

    def served(self, experts: Int[Tensor, "batch time active"]) -> Int[Tensor, "batch time active"]:
        """The choices, with the number of experts in place of those that find no room."""
        if self.capacity is None or not self.training:
            return experts
        room = config_mlp.expert_room(self.capacity, self.active, self.count, experts.shape[1])
        return experts.masked_fill(over_capacity(experts, self.count, room), self.count)

    def _auxiliary(self, routing: Routing, context: Context) -> Auxiliary:
        found: Auxiliary = {}
        if self.balance_weight:
            found["balance"] = self.balance_weight * balance_loss(routing, context.token_mask, self.sum_parts)
        if self.z_weight:
            found["router_z"] = self.z_weight * router_z_loss(routing, context.token_mask, self.sum_parts)
        if self.balance_rate:
            found[self.load_name] = row_loads(routing, context.token_mask).sum(0)
        return found
