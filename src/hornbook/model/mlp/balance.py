"""Statistics of routing: losses that even out experts, loads, and what is over an expert's capacity.

All of them are made row by row (sequence by sequence), so that they are the same however rows are cut into
microbatches or spread over ranks. For a row of n tokens that count (padding does not), k of E experts per token,

    f_e = (choices of e) / (k n),    P_e = mean over tokens of the score s_e,    sum of f = sum of P = 1            (1)
    balance = E sum over e of f_e P_e                                                                               (2)
    z = mean over tokens of (log sum over e of exp(z_e))^2                                                          (3)

(2) is equation 4 of Switch (Fedus et al. 2021, arXiv 2101.03961) with f divided by k, and equations 17-20 of
DeepSeek-V3 (arXiv 2412.19437), which too are per sequence: 1 where scores are even, whatever k is, and E where one
expert takes all (k = 1). transformers' load_balancing_loss_func is another number: it pools f and P over rows and
layers and is k times as large. (3) is ST-MoE's (Zoph et al. 2022, arXiv 2202.08906).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hornbook.model.mlp.router import Routing

TokenMask = Bool[Tensor, "batch time"] | None
"""True for tokens that count; None: all."""
SumParts = Callable[[Tensor], Tensor] | None
"""From a sum over the tokens of a row that are here to that over the whole row; None: the row is here."""


def balance_loss(routing: Routing, token_mask: TokenMask = None, sum_parts: SumParts = None) -> Float[Tensor, " batch"]:
    """Equation (2) of each row; the gradient flows through P alone. 0 for a row in which nothing counts."""
    choices = row_loads(routing, token_mask).to(routing.scores.dtype)
    choices = choices if sum_parts is None else sum_parts(choices)
    share = choices / choices.sum(-1, keepdim=True).clamp(min=1)
    return choices.shape[-1] * (share * row_mean(routing.scores, token_mask, sum_parts)).sum(-1)


def router_z_loss(
    routing: Routing, token_mask: TokenMask = None, sum_parts: SumParts = None
) -> Float[Tensor, " batch"]:
    """Equation (3) of each row."""
    return row_mean(routing.logits.logsumexp(-1).square(), token_mask, sum_parts)


def row_loads(routing: Routing, token_mask: TokenMask = None) -> Int[Tensor, "batch experts"]:
    """How many choices of each row fall on each expert."""
    experts = routing.experts
    ones = torch.ones_like(experts) if token_mask is None else token_mask[..., None].expand_as(experts).long()
    loads = experts.new_zeros(len(experts), routing.scores.shape[-1])
    return loads.scatter_add_(1, experts.flatten(1), ones.flatten(1))


def row_mean(
    values: Float[Tensor, "batch time ..."], token_mask: TokenMask, sum_parts: SumParts = None
) -> Float[Tensor, "batch ..."]:
    """Mean of each row over the tokens that count."""
    if token_mask is None and sum_parts is None:
        return values.mean(1)
    token_mask = values.new_ones(values.shape[:2]) if token_mask is None else token_mask
    weights = token_mask.to(values.dtype).view(*token_mask.shape, *[1] * (values.dim() - 2))
    total, count = (values * weights).sum(1), weights.sum(1)
    if sum_parts is not None:
        total, count = sum_parts(total), sum_parts(count)
    return total / count.clamp(min=1)


def over_capacity(
    experts: Int[Tensor, "batch time active"], count: int, capacity: int
) -> Bool[Tensor, "batch time active"]:
    """Choices that come after the first `capacity` ones of the same expert in the same row.

    They come token by token, each token's best first: who is served does not depend on later tokens, as it would
    if all tokens' first choices came before the second ones (GShard, arXiv 2006.16668).
    """
    rows = torch.arange(len(experts), device=experts.device).view(-1, 1, 1)
    keys = (rows * count + experts).flatten()
    order = keys.argsort(stable=True)
    loads = torch.zeros(len(experts) * count, dtype=torch.int64, device=keys.device)
    loads = loads.scatter_add_(0, keys, torch.ones_like(keys))
    before = loads.cumsum(0) - loads
    rank = torch.empty_like(keys)
    rank[order] = torch.arange(len(keys), device=keys.device) - before[keys[order]]
    return (rank >= capacity).view_as(experts)
