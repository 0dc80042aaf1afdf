"""From the logits of the next token to the token: penalties, filters, and a draw keyed by (seed, index).

Penalties, before everything else: repetition (Keskar et al. 2019, arXiv 1909.05858, section 4.1), which looks at the
prompt too; presence and frequency (OpenAI's API reference), which look at what was generated. Filters: temperature;
top-k (Fan et al. 2018, arXiv 1805.04833); nucleus or top-p (Holtzman et al. 2020, arXiv 1904.09751); min-p (Nguyen et
al. 2024, arXiv 2407.01082), applied in this order. The draw is the inverse of the distribution function at a uniform
number that is a pure function of (seed, index of the token), so a text does not depend on what was drawn before it.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.errors import UsageError

REMOVED = float("-inf")
COLDEST = 1e-6
"""Below this temperature a draw is greedy: logits divided by still less would overflow float32."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 1.0
    """Logits are divided by it; 0 (below `COLDEST`) is greedy."""
    top_k: int = 0
    """Only the k most likely tokens; 0 is all."""
    top_p: float = 1.0
    """Only the smallest set of most likely tokens with at least this probability."""
    greedy: bool = False
    """Always the most likely token."""
    seed: int = 0
    """Same seed, same text."""
    min_p: float = 0.0
    """Only tokens at least this share as likely as the likeliest; 0 is all."""
    repetition_penalty: float = 1.0
    """Logits of tokens of the prompt and the text are divided by it where positive, else multiplied; 1 is none."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that were generated."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens that were generated, once for each time."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be a number from 0 (greedy) up, not {self.temperature}")
        if self.top_k < 0:
            raise UsageError(f"top-k must be a number of tokens, or 0 for all, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be a share above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min-p must be a share from 0 (all tokens) to 1, not {self.min_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UsageError(f"repetition-penalty must be a number above 0 (1: none), not {self.repetition_penalty}")
        for name, value in (("presence", self.presence_penalty), ("frequency", self.frequency_penalty)):
            if not float("-inf") < value < float("inf"):
                raise UsageError(f"{name}-penalty must be a number, not {value}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must lie between 0 and 2^63, not {self.seed}")

    @property
    def is_greedy(self) -> bool:
        """The most likely token is taken."""
        return self.greedy or self.temperature < COLDEST

    @property
    def penalises(self) -> bool:
        """Tokens of the text so far change the logits."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)


@dataclass
class TokenCounts:
    """Tokens of a text so far, which penalties look at."""

    prompt: Collection[int] = ()
    generated: Counter[int] = field(default_factory=Counter)
    """How often each was generated."""


def penalise(logits: Float[Tensor, " vocab"], sampling: Sampling, counts: TokenCounts) -> Float[Tensor, " vocab"]:
    """The logits with penalties; themselves where there is none."""
    if not sampling.penalises:
        return logits
    logits = logits.clone()
    seen = sorted({*counts.prompt, *counts.generated})
    if sampling.repetition_penalty != 1 and seen:
        ids = torch.tensor(seen, device=logits.device)
        scores = logits[ids]
        factor = sampling.repetition_penalty
        logits[ids] = torch.where(scores < 0, scores * factor, scores / factor)
    if counts.generated:
        ids = torch.tensor(list(counts.generated), device=logits.device)
        times = torch.tensor(list(counts.generated.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * times
    return logits


def filter_logits(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Float[Tensor, "*batch vocab"]:
    """Logits to draw from: scaled, and -inf where a token is out of the running; at least one token stays in.

    temperature > 0; top_k = 0, top_p = 1 and min_p = 0 filter nothing. Ties at the k-th place all stay.
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
    if min_p > 0:
        share = scaled.softmax(dim=-1)
        scaled = scaled.masked_fill(share < min_p * share.amax(dim=-1, keepdim=True), REMOVED)
    return scaled


def choose_token(
    logits: Float[Tensor, " vocab"], sampling: Sampling, index: int, counts: TokenCounts | None = None
) -> int:
    """The id of token number `index` of the continuation; `counts`: what is there before it, for penalties."""
    logits = logits if counts is None else penalise(logits, sampling, counts)
    if sampling.is_greedy:
        return int(logits.argmax())
    return draw(_filtered(logits, sampling), keyed_uniform(sampling.seed, index))


def token_shares(logits: Float[Tensor, " vocab"], sampling: Sampling, counts: TokenCounts) -> Float[Tensor, " vocab"]:
    """Probability with which each token is chosen, float64 on the CPU; greedy: 1 for the most likely one."""
    logits = penalise(logits, sampling, counts)
    if sampling.is_greedy:
        return torch.zeros(len(logits), dtype=torch.float64).index_fill_(0, logits.argmax().view(1).cpu(), 1.0)
    return _filtered(logits, sampling).double().softmax(-1)


def _filtered(logits: Float[Tensor, " vocab"], sampling: Sampling) -> Float[Tensor, " vocab"]:
    """Logits to draw from, on the CPU."""
    kept = filter_logits(
        logits.float(),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )
    return kept.cpu()


def draw(logits: Float[Tensor, " vocab"], uniform: float) -> int:
    """The token whose interval of the distribution function holds `uniform` (in [0, 1)); never one of -inf."""
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    last = int(torch.nonzero(logits > REMOVED)[-1])
    return min(index, last)


def keyed_uniform(seed: int, index: int, stream: int = 0) -> float:
    """A uniform number in [0, 1) that is a pure function of its arguments (Philox, Salmon et al. 2011)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index + (stream << 64))).random())


class TokenScore(NamedTuple):
    """Log-probability (nats) of a token by the model alone, before penalties, temperature and filters."""

    token: int
    log_probability: float | None
    """None: it follows nothing."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens and theirs, the likeliest first."""


def score_token(logits: Float[Tensor, " vocab"], token: int, top: int) -> TokenScore:
    """The score of a token and of the `top` likeliest in its place, without those that are never chosen."""
    scores = logits.float().log_softmax(-1)
    best = scores.topk(min(top, len(scores)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return TokenScore(token, float(scores[token]), tuple((each, score) for each, score in pairs if score > REMOVED))
