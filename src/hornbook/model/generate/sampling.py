"""From the logits of the next token to the token: filters, and a draw keyed by (seed, index).

Filters: temperature; top-k (Fan et al. 2018, arXiv 1805.04833); nucleus or top-p (Holtzman et al. 2020, arXiv
1904.09751), applied in this order. The draw is the inverse of the distribution function at a uniform number that
is a pure function of (seed, index of the token), so a text does not depend on what was drawn before it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.errors import UsageError

REMOVED = float("-inf")


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 1.0
    """Logits are divided by it; 0 is greedy."""
    top_k: int = 0
    """Only the k most likely tokens; 0 is all."""
    top_p: float = 1.0
    """Only the smallest set of most likely tokens with at least this probability."""
    greedy: bool = False
    """Always the most likely token."""
    seed: int = 0
    """Same seed, same text."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be a number from 0 (greedy) up, not {self.temperature}")
        if self.top_k < 0:
            raise UsageError(f"top-k must be a number of tokens, or 0 for all, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be a share above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must lie between 0 and 2^63, not {self.seed}")


def filter_logits(
    logits: Float[Tensor, "*batch vocab"], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Float[Tensor, "*batch vocab"]:
    """Logits to draw from: scaled, and -inf where a token is out of the running; at least one token stays in.

    temperature > 0; top_k = 0 and top_p = 1 filter nothing. Ties at the k-th place all stay.
    """
    scaled = logits / temperature
    if 0 < top_k < scaled.shape[-1]:
        least = scaled.topk(top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, REMOVED)
    if top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True)
        share = ordered.softmax(dim=-1)
        # A token stays while the likelier ones before it have not reached top_p; the first one always does.
        reached = share.cumsum(dim=-1) - share >= top_p
        scaled = scaled.masked_fill(torch.zeros_like(reached).scatter(-1, order, reached), REMOVED)
    return scaled


def choose_token(logits: Float[Tensor, " vocab"], sampling: Sampling, index: int) -> int:
    """The id of token number `index` of the continuation."""
    if sampling.greedy or sampling.temperature == 0:
        return int(logits.argmax())
    kept = filter_logits(logits.float(), temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    return draw(kept.cpu(), keyed_uniform(sampling.seed, index))


def draw(logits: Float[Tensor, " vocab"], uniform: float) -> int:
    """The token whose interval of the distribution function holds `uniform` (in [0, 1)); never one of -inf."""
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    last = int(torch.nonzero(logits > REMOVED)[-1])
    return min(index, last)


def keyed_uniform(seed: int, index: int) -> float:
    """A uniform number in [0, 1) that is a pure function of its arguments (Philox, Salmon et al. 2011)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index)).random())
