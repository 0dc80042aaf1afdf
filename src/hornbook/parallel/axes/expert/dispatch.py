"""Experts divided over ranks: tokens go to the ranks of their experts, and what these make of them comes back.

A rank holds some neighbouring experts of each layer. A token is sent once to every rank that holds one of its experts,
with the numbers of its experts and its routing weights; that rank computes its part of the sum over experts, equation
(1) of `hornbook.model.mlp.grouped`, as one process would; and the token's own rank adds up the parts. So the sums
differ from those of one process in their order alone, and a token with k experts travels at most min(k, ranks) times
instead of k (as in DeepSeek-V3, arXiv 2412.19437, section 3.2.2; there the limit is on nodes).

Router, shared expert, capacity and auxiliary losses know nothing of it: they look at a rank's own tokens.
Which tokens arrive differs from rank to rank and from step to step, but never how many collectives there are: a rank
without a token for another sends it no rows. Forward has four (a table of sizes; tokens, weights and numbers of
experts; parts of sums), backward three.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.kernels.team import supports
from hornbook.kernels.torch_versions import FakeTensor, uncompiled
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.cpu.cpu_experts import sum_rows
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.grouped import Weights, grouped_glu
from hornbook.model.mlp.mlp import Blend
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.expert.token_exchange import Exchange, Table
from hornbook.parallel.axes.tensor.divide import portion
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parameter_shard import Division, Divisions
from hornbook.parallel.world import World


class Route(NamedTuple):
    """Where a rank's tokens go. A copy of a token goes to each rank that holds one of its experts."""

    tokens: Int[Tensor, " copies"]
    """The token of each copy; copies are in the order of the ranks they go to, then of tokens."""
    slots: Int[Tensor, "tokens most"]
    """The copies of each token; -1 where it has fewer than the most that a token may have."""
    table: Table
    """Copies that each rank sends to each."""


class Dispatcher:
    """What a layer calls in place of `grouped_glu`: the same sums, of experts on several ranks."""

    def __init__(self, exchange: Exchange, count: int, layer: int) -> None:
        """count: experts of the whole layer. layer: a number that the layer has on all ranks, and no other layer."""
        self._exchange, self._count, self._layer = exchange, count, layer
        self._bounds = [0, *(portion(count, exchange.size, rank).last for rank in range(exchange.size))]

    @uncompiled
    def __call__(
        self,
        x: Float[Tensor, "tokens width"],
        experts: Int[Tensor, "tokens active"],
        weights: Float[Tensor, "tokens active"],
        matrices: Weights,
        activation: config_mlp.Activation | Blend = "silu",
    ) -> Float[Tensor, "tokens width"]:
        """`experts` are numbers in the whole layer, and its count means none; `matrices` are of this rank's experts."""
        if isinstance(experts, FakeTensor):
            return self._foreseen(x, experts, weights, matrices, activation)
        route, expected = self._route(experts)
        rows, row_weights = Dispatch.apply(x, weights, self._exchange, route)
        local = self._local(self._exchange.there(experts[route.tokens], route.table))
        here = int((local < len(matrices.gate)).sum())
        assert here == expected, f"{here} choices of experts arrived in layer {self._layer}, and {expected} were sent"
        y = grouped_glu(rows, local, row_weights, matrices, activation)
        return Combine.apply(y, self._exchange, route)

    def _route(self, experts: Int[Tensor, "tokens active"]) -> tuple[Route, int]:
        """The route, and how many choices fall on this rank's experts."""
        ranks = self._exchange.size
        last = torch.tensor(self._bounds[1:], device=experts.device)
        owners = torch.bucketize(experts, last, right=True)  # `ranks` where a choice is of none
        wanted = owners.new_zeros(len(experts), ranks + 1).scatter_(1, owners, 1)[:, :ranks]
        choices = torch.bincount(owners.flatten(), minlength=ranks + 1)[:ranks]
        to, tokens = wanted.T.nonzero(as_tuple=True)
        slots = experts.new_full((len(experts), min(ranks, experts.shape[1])), -1)
        slots[tokens, wanted.cumsum(1)[tokens, to] - 1] = torch.arange(len(tokens), device=experts.device)
        numbers = torch.cat([wanted.sum(0), choices, choices.new_tensor([self._layer])])
        told = self._exchange.tell(numbers).tolist()
        layers = [line[-1] for line in told]
        assert layers == layers[:1] * ranks, f"ranks are in different layers of experts: {layers}"
        return Route(tokens, slots, [line[:ranks] for line in told]), sum(
            line[ranks + self._exchange.rank] for line in told
        )

    def _foreseen(
        self, x: Tensor, experts: Tensor, weights: Tensor, matrices: Weights, activation: config_mlp.Activation | Blend
    ) -> Tensor:
        """On tensors without values, of a dry run: every rank gets as many tokens, and its experts their share."""
        ranks, (tokens, active) = self._exchange.size, experts.shape
        most = min(ranks, active)
        each = -(-tokens * most // ranks)
        numbers = experts.new_zeros(each * ranks)
        route = Route(numbers, experts.new_zeros(tokens, most), [[each] * ranks] * ranks)
        rows, row_weights = Dispatch.apply(x, weights, self._exchange, route)
        share = -(-active // most)
        local = self._exchange.there(experts[numbers], route.table)[:, :share]
        return Combine.apply(
            grouped_glu(rows, local, row_weights[:, :share], matrices, activation), self._exchange, route
        )

    def _local(self, experts: Int[Tensor, "copies active"]) -> Int[Tensor, "copies active"]:
        """Numbers among this rank's experts; their count where an expert is another rank's, or none."""
        first, end = self._bounds[self._exchange.rank : self._exchange.rank + 2]
        return (experts - first).masked_fill((experts < first) | (experts >= end), end - first)


class Dispatch(torch.autograd.Function):
    """x [tokens, width] and weights [tokens, active] -> those of the tokens that reach this rank."""

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor, exchange: Exchange, route: Route) -> tuple[Tensor, Tensor]:
        ctx.exchange, ctx.route = exchange, route
        rows, row_weights = (exchange.there(each[route.tokens], route.table) for each in (x, weights))
        return rows, row_weights

    @staticmethod
    def backward(ctx, *grads: Tensor):
        # Whatever needs a gradient does so on all ranks, so all send the same.
        wanted = zip(grads, ctx.needs_input_grad, strict=False)
        return *(_add_up(each, ctx.exchange, ctx.route) if needed else None for each, needed in wanted), None, None


class Combine(torch.autograd.Function):
    """What ranks made of the copies they got -> sums over the copies of each of this rank's tokens."""

    @staticmethod
    def forward(ctx, y: Tensor, exchange: Exchange, route: Route) -> Tensor:
        ctx.exchange, ctx.route = exchange, route
        return _add_up(y, exchange, route)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return ctx.exchange.there(grads[0][ctx.route.tokens], ctx.route.table), None, None


def _add_up(rows: Tensor, exchange: Exchange, route: Route) -> Tensor:
    """Bring the copies back to their ranks and add up those of each token: [copies here, n] -> [tokens, n].

    The transpose of `exchange.there(x[route.tokens])`. What is added is gathered, never scattered: the order is fixed.
    """
    returned = exchange.back(rows, route.table)
    assert len(returned) == len(route.tokens), "as many come back as were sent"
    if supports(returned):
        return sum_rows(returned, route.slots)
    total = returned.new_zeros(len(route.slots), *returned.shape[1:])
    if len(returned):
        for slots in route.slots.T:
            total += returned[slots.clamp(min=0)].masked_fill((slots < 0)[:, None], 0)
    return total


def apply_experts(model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> None:
    """Leave each layer this rank's experts, on whatever device they are, and send tokens to where theirs are.

    Parts differ by one expert at most. All ranks call it.
    """
    if config.expert == 1:
        return
    exchange = Exchange(world, "expert")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Experts)}
    for number, (name, module) in enumerate(layers.items()):
        first, end, _ = portion(module.count, exchange.size, exchange.rank)
        for each in Weights._fields:
            whole = getattr(module, each)
            divisions[f"{name}.{each}"] = Division(tuple(whole.shape), (first, 0, 0), ("expert",))
            setattr(module, each, nn.Parameter(whole.detach()[first:end].clone(), whole.requires_grad))
        module.product = Dispatcher(exchange, module.count, number)
