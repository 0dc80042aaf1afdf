"""From the logits of the next token to the token: penalties, filters, and a draw keyed by (seed, index).

Penalties, before everything else: repetition (Keskar et al. 2019, arXiv 1909.05858, section 4.1), which looks at the
prompt too; presence and frequency (OpenAI's API reference), which look at what was generated. Filters: temperature;
top-k (Fan et al. 2018, arXiv 1805.04833); nucleus or top-p (Holtzman et al. 2020, arXiv 1904.09751); min-p (Nguyen et
al. 2024, arXiv 2407.01082), applied in this order. The draw is the inverse of the distribution function at a uniform
number that is a pure function of (seed, index of the token), so a text does not depend on what was drawn before it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hornbook.errors import DivergedError, UsageError
from hornbook.kernels.team import supports
from hornbook.model.cpu.cpu_sampling import draw_tokens, outside_nucleus
from hornbook.model.layers.transfer import to_device

REMOVED = float("-inf")
COLDEST = 1e-6
"""Below this temperature a draw is greedy: logits divided by still less would overflow float32."""
NUCLEUS = 256
"""Tokens among which a nucleus is looked for first: to put a whole vocabulary in order takes many times as long."""
Rows = Float[Tensor, "rows vocab"]
"""Logits of one token of each of several texts."""


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

    def __post_init__(self) -> None:
        self.seen = dict.fromkeys([*self.prompt, *self.generated])
        """Each token of prompt and text, once."""

    def add(self, token: int) -> None:
        """Count a token that was generated."""
        self.generated[token] += 1
        self.seen[token] = None


def penalise(logits: Rows, samplings: Sequence[Sampling], counts: Sequence[TokenCounts]) -> Rows:
    """The logits with each row's penalties; themselves where there is none."""
    rows = [row for row, each in enumerate(samplings) if each.penalises]
    if rows:
        logits = logits.clone()
        for row in rows:
            _penalise(logits[row], samplings[row], counts[row])
    return logits


def _penalise(logits: Float[Tensor, " vocab"], sampling: Sampling, counts: TokenCounts) -> None:
    """Changes the logits of one text."""
    if sampling.repetition_penalty != 1 and counts.seen:
        ids = to_device(torch.tensor(list(counts.seen)), logits.device)
        scores = logits[ids]
        factor = sampling.repetition_penalty
        logits[ids] = torch.where(scores < 0, scores * factor, scores / factor)
    if counts.generated:
        ids = to_device(torch.tensor(list(counts.generated)), logits.device)
        times = to_device(torch.tensor(list(counts.generated.values()), dtype=logits.dtype), logits.device)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * times


def filter_logits(logits: Rows, samplings: Sequence[Sampling]) -> Rows:
    """Logits to draw from, of each row by its own settings: scaled, and -inf where a token is out of the running.

    At least one token of a row stays in. Temperatures are above 0. Ties at the k-th place all stay.
    """
    vocab = logits.shape[-1]
    scaled = logits / _column([each.temperature for each in samplings], logits)
    most = [each.top_k if each.top_k < vocab else 0 for each in samplings]
    _remove(scaled, most, 0, _outside_top_k)
    _remove(scaled, [each.top_p for each in samplings], 1, _outside_nucleus)
    _remove(scaled, [each.min_p for each in samplings], 0, _below_share)
    return scaled


def _remove(scaled: Rows, values: Sequence[float], none: float, outside: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Remove from rows with a setting what is `outside` of it; `none` is the value that removes nothing."""
    rows = [row for row, value in enumerate(values) if value != none]
    if rows:
        index = to_device(torch.tensor(rows), scaled.device)
        part = scaled[index]
        column = _column([values[row] for row in rows], scaled)
        scaled[index] = part.masked_fill(outside(part, column), REMOVED)


def _column(values: Sequence[float], like: Tensor) -> Float[Tensor, "rows 1"]:
    return to_device(torch.tensor(values, dtype=like.dtype), like.device)[:, None]


def _outside_top_k(scaled: Rows, most: Float[Tensor, "rows 1"]) -> Bool[Tensor, "rows vocab"]:
    places = most.long()
    count = scaled.shape[1] if scaled.is_cuda else int(places.max())  # a GPU sorts; to know the largest it would wait
    return scaled < scaled.topk(count).values.gather(1, places - 1)


def _outside_nucleus(scaled: Rows, least: Float[Tensor, "rows 1"], count: int = NUCLEUS) -> Bool[Tensor, "rows vocab"]:
    """Beyond the likeliest tokens that together reach `least`, of which only the first `count` are put in order.

    A row that does not reach it among them is put in order whole.
    """
    if supports(scaled):
        return outside_nucleus(scaled, least)
    count = scaled.shape[1] if scaled.is_cuda else count  # a GPU sorts; to look who needs more the host would wait
    share = scaled.softmax(-1)
    ordered = share.topk(min(count, share.shape[1]))
    # A token stays while the likelier ones before it have not reached the share; the first one always does.
    reached = ordered.values.cumsum(-1) - ordered.values >= least
    outside = torch.ones_like(share, dtype=torch.bool).scatter(1, ordered.indices, reached)
    wide = ~reached[:, -1]
    if count < share.shape[1] and bool(wide.any()):
        outside[wide] = _outside_nucleus(scaled[wide], least[wide], share.shape[1])
    return outside


def _below_share(scaled: Rows, least: Float[Tensor, "rows 1"]) -> Bool[Tensor, "rows vocab"]:
    share = scaled.softmax(-1)
    return share < least * share.amax(-1, keepdim=True)


def choose_token(logits: Float[Tensor, " vocab"], sampling: Sampling, index: int, counts: TokenCounts) -> int:
    """The id of token number `index` of a continuation; `counts`: what is there before it, for penalties."""
    return choose_tokens(logits[None], [sampling], [index], [counts])[0]


def choose_tokens(
    logits: Rows, samplings: Sequence[Sampling], indices: Sequence[int], counts: Sequence[TokenCounts]
) -> list[int]:
    """The next token of each of several texts, which is what it would be alone."""
    logits = penalise(logits, samplings, counts)
    tokens = logits.argmax(-1)
    rows = [row for row, each in enumerate(samplings) if not each.is_greedy]
    if not rows:
        return tokens.tolist()
    index, sampled = to_device(torch.tensor(rows), logits.device), [samplings[row] for row in rows]
    kept = filter_logits(logits[index].float(), sampled)
    uniform = [keyed_uniform(each.seed, indices[row]) for row, each in zip(rows, sampled, strict=True)]
    tokens[index] = drawn(kept, torch.tensor(uniform, dtype=torch.float64))
    chosen = tokens.tolist()  # the host waits once
    for place, row in enumerate(rows):
        chosen[row] = _possible(chosen[row], kept[place])
    return chosen


def token_shares(logits: Float[Tensor, " vocab"], sampling: Sampling, counts: TokenCounts) -> Float[Tensor, " vocab"]:
    """Probability with which each token is chosen, float64 on the CPU; greedy: 1 for the most likely one."""
    rows = penalise(logits[None], [sampling], [counts])
    if sampling.is_greedy:
        return torch.zeros(len(logits), dtype=torch.float64).index_fill_(0, rows.argmax().view(1).cpu(), 1.0)
    return filter_logits(rows.float(), [sampling])[0].cpu().double().softmax(-1)


def draw(logits: Rows, uniform: Sequence[float]) -> list[int]:
    """Of each row the token whose interval of the distribution function holds its `uniform` (in [0, 1)).

    Never one of -inf. DivergedError where a row has no finite logit.
    """
    tokens = drawn(logits, torch.tensor(uniform, dtype=torch.float64)).tolist()
    return [_possible(token, row) for token, row in zip(tokens, logits, strict=True)]


def _possible(token: int, logits: Float[Tensor, " vocab"]) -> int:
    """The token; where a point was rounded up to the end of the last interval, it is the size of the vocabulary."""
    if token < len(logits):
        return token
    possible = torch.nonzero(logits > REMOVED)
    if not len(possible):
        raise DivergedError("the model's logits are not finite: take a checkpoint from before it diverged")
    return int(possible[-1])


def drawn(logits: Rows, uniform: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """As `draw`, of numbers in float64; on the device of the logits; the size of the vocabulary where it finds none."""
    if supports(logits):
        return draw_tokens(logits, uniform)
    uniform = to_device(uniform, logits.device)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]


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
    return score_tokens(logits[None], [token], [top])[0]


def score_tokens(logits: Rows, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenScore]:
    """The score of a token in each row, and of so many of the likeliest in its place."""
    scores = logits.float().log_softmax(-1)
    chosen = scores.gather(1, to_device(torch.tensor(tokens), scores.device)[:, None])
    best = scores.topk(min(max(tops), scores.shape[1]))
    fetched = torch.cat([chosen.double(), best.values.double(), best.indices.double()], 1).tolist()
    count = best.values.shape[1]
    own = [row[0] for row in fetched]
    likely = [([int(index) for index in row[1 + count :]], row[1 : 1 + count]) for row in fetched]
    return [
        TokenScore(token, score, tuple(each for each in list(zip(*pair, strict=True))[:top] if each[1] > REMOVED))
        for token, score, pair, top in zip(tokens, own, likely, tops, strict=True)
    ]
