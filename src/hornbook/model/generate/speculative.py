"""Text from a model that checks several drafted tokens in one pass: the same text, or the same distribution.

Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192). A drafter proposes tokens x with the probabilities q
that it drew them from; one pass of the model gives its own probabilities p in each of their places. In order, x is
taken with probability min(1, p(x) / q(x)); the first one that is not is replaced by a draw from max(p - q, 0),
normalised, and ends the step; where all are taken, p gives one more. So each token has the distribution p, and greedy
text is that of `generate` (up to rounding: a pass over several tokens sums in another order than passes over each).

Drafts come from the model's own blocks of multi-token prediction (arXiv 2412.19437, section 2.2), or from a smaller
model. Both begin where the text stands and forget what was not taken: key-value caches are cut.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.attention.delta import DeltaAttention
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.generate.generate import next_logits
from hornbook.model.generate.sampling import (
    REMOVED,
    Sampling,
    TokenCounts,
    choose_token,
    draw,
    keyed_uniform,
    token_shares,
)
from hornbook.model.layers.transfer import to_device
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.model.transformer import Transformer

_DRAFT, _ACCEPT = 1, 2
"""Streams of random numbers; what the model itself draws is stream 0, as in `generate`."""


class Draft(NamedTuple):
    """A token that is proposed."""

    token: int
    shares: Float[Tensor, " vocab"]
    """Probability of each token that it was drawn from, float64."""


Propose = Callable[[Tensor], Draft]
"""From logits of the place behind the last draft to the next one."""


class Drafter(Protocol):
    """Proposes tokens."""

    depth: int
    """Drafts at most."""

    def draft(self, text: list[int], states: Float[Tensor, "new width"], count: int, propose: Propose) -> list[Draft]:
        """At most `count` tokens that may follow `text`.

        states: the model's, of the tokens of the text that it has read since the last call; it lacks the last token.
        """
        ...

    def restart(self) -> None:
        """The next text is another, or begins elsewhere."""


@dataclass
class Tally:
    """What became of drafts."""

    passes: int = 0
    """Of the model."""
    drafted: int = 0
    taken: int = 0
    tokens: int = 0
    """Of the text."""

    def record(self) -> dict[str, float]:
        """For JSON."""
        each = round(self.tokens / max(self.passes, 1), 3)
        return {"passes": self.passes, "drafted": self.drafted, "accepted": self.taken, "tokens_per_pass": each}


class OwnBlocks:
    """Drafts by the model's blocks of multi-token prediction."""

    def __init__(self, model: Transformer) -> None:
        """Raises UsageError for a model that has none."""
        if model.mtp is None:
            raise UsageError(
                "the model has no blocks of multi-token prediction to draft with: train one with model.mtp.kind = "
                '"sequential", or name a smaller model of the same tokenizer (--draft MODEL)'
            )
        self._model, self.depth = model, model.mtp.depth
        self._passes_on = bool(model.mtp.joins)
        self.restart()

    def restart(self) -> None:
        self._states: Tensor | None = None
        self._caches = [KVCache() for _ in range(self.depth)]
        self._final = 0  # positions of which no cache will hold other keys: the tokens ahead of them are known

    def draft(self, text: list[int], states: Float[Tensor, "new width"], count: int, propose: Propose) -> list[Draft]:
        self._states = states if self._states is None else torch.cat([self._states, states])
        assert self._model.head is not None
        assert len(self._states) == len(text) - 1
        found, ids, start = list[Draft](), list(text), self._final
        last = own = self._states[None, start:]
        for ahead in range(1, min(count, self.depth) + 1):
            cache = self._caches[ahead - 1]
            cache.length = start
            tokens = to_device(torch.tensor([ids[start + ahead :]]), states.device)
            last = self._model.look_ahead(ahead, last if self._passes_on else own, tokens, cache)
            found.append(propose(self._model.head.logits(last[0, -1])))
            ids.append(found[-1].token)
        if len(found) == self.depth:
            self._final = max(len(text) - self.depth, 0)
        return found


class OtherModel:
    """Drafts by another model, which reads the text itself."""

    def __init__(self, model: Transformer, depth: int, length: int | None = None) -> None:
        """length: positions that it may use, by default those that it has vectors for, else no limit."""
        refuse_unsuited(model)
        self._model, self.depth, self._cache = model, depth, KVCache()
        learned = None if model.positions is None else model.positions.length
        self._room = min((each for each in (learned, length) if each is not None), default=None)
        self._held: list[int] = []

    def restart(self) -> None:
        pass  # it compares texts

    def draft(self, text: list[int], states: Float[Tensor, "new width"], count: int, propose: Propose) -> list[Draft]:
        del states
        if self._room is not None:
            count = min(count, self._room - len(text))
        pairs = zip(self._held, text[:-1], strict=False)
        held = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._cache.length, pending = held, text[held:]
        found = list[Draft]()
        while len(found) < count:
            found.append(propose(next_logits(self._model, pending, self._cache)))
            held, pending = held + len(pending), [found[-1].token]
        self._held = [*text, *(each.token for each in found)][: self._cache.length]
        return found


def speculate(
    model: Transformer,
    tokens: Sequence[int],
    drafter: Drafter,
    *,
    max_tokens: int,
    stop: Collection[int] = (),
    vocab: int | None = None,
    length: int | None = None,
    observe: Callable[[Tensor, int], None] | None = None,
    tally: Tally | None = None,
    **sampling: Any,
) -> Iterator[int]:
    """Ids that continue `tokens`, as `generate` gives them; arguments as there. tally: is counted up.

    Errors: UsageError.
    """
    if not tokens:
        raise UsageError("there is no token to continue: begin with the tokenizer's delimiter")
    refuse_unsuited(model)
    text = _Text(model, list(tokens), drafter, Sampling(**sampling), vocab, observe, tally or Tally())
    learned = None if model.positions is None else model.positions.length
    room = min((each for each in (learned, length) if each is not None), default=None)
    return takewhile(lambda token: token not in stop, text.continued(max_tokens, room))


def refuse_unsuited(model: Transformer) -> None:
    """UsageError for a model whose past cannot be cut."""
    if model.encoder is not None or model.kind != "causal":
        raise UsageError("drafts continue a text, and this model is no decoder: leave out --speculative and --draft")
    if any(isinstance(module, DeltaAttention) for module in model.modules()):
        raise UsageError(
            'attention of kind "delta" cannot go back behind a draft that is not taken: leave out --speculative'
        )
    if prompt_length(model):
        raise UsageError(
            "a soft prompt or a prefix (surgery) shifts all positions: leave out --speculative and --draft"
        )


class _Text:
    """A text that grows."""

    def __init__(
        self,
        model: Transformer,
        history: list[int],
        drafter: Drafter,
        how: Sampling,
        vocab: int | None,
        observe: Callable[[Tensor, int], None] | None,
        tally: Tally,
    ) -> None:
        self._model, self._history, self._drafter, self._how = model, history, drafter, how
        self._vocab, self._observe, self._tally = vocab, observe, tally
        self._counts = TokenCounts(frozenset(history))

    def continued(self, max_tokens: int, room: int | None) -> Iterator[int]:
        """Ids, as many; with `room` positions at most, of which half are left when they are full."""
        cache, window, known = KVCache(), list(self._history), 0  # `known`: tokens of the window that the cache holds
        states: Tensor | None = None
        self._drafter.restart()
        made = 0
        while made < max_tokens:
            if room is not None and len(window) > room:
                cache, window, known, states = KVCache(), self._history[-max(room // 2, 1) :], 0, None
                self._drafter.restart()
            most = min(self._drafter.depth, max_tokens - made - 1)
            most = most if room is None else min(most, room - len(window))
            drafts = [] if states is None else self._drafts(window, states, most, made)
            seen = self._read(window[known:] + [each.token for each in drafts], cache)
            logits = self._logits(seen[len(window) - known - 1 :])
            for place, row in enumerate(logits):
                draft = drafts[place] if place < len(drafts) else None
                token = self._choose(row, draft, made)
                made += 1
                self._history.append(token)
                window.append(token)
                self._tally.tokens += 1
                yield token
                if draft is None or token != draft.token:
                    break
                self._tally.taken += 1
            states, known = seen[: len(window) - 1 - known], len(window) - 1
            cache.length = known

    def _drafts(self, window: list[int], states: Tensor, count: int, made: int) -> list[Draft]:
        counts, before = TokenCounts(self._counts.prompt, self._counts.generated.copy()), made

        def propose(logits: Tensor) -> Draft:
            nonlocal before
            shares = token_shares(self._cut(logits), self._how, counts)
            token = int(shares.argmax()) if self._how.is_greedy else _drawn(shares, self._how.seed, before, _DRAFT)
            counts.add(token)
            before += 1
            return Draft(token, shares)

        with torch.no_grad():
            found = self._drafter.draft(list(window), states, count, propose)
        self._tally.drafted += len(found)
        return found

    def _read(self, tokens: list[int], cache: KVCache) -> Float[Tensor, "new width"]:
        self._tally.passes += 1
        device = next(self._model.parameters()).device
        with torch.no_grad():
            return self._model(to_device(torch.tensor([tokens]), device), cache=cache)[0][0]

    def _logits(self, states: Tensor) -> Tensor:
        assert self._model.head is not None
        with torch.no_grad():
            return self._model.head.logits(states)

    def _cut(self, logits: Tensor) -> Tensor:
        return logits if self._vocab is None else logits[: self._vocab]

    def _choose(self, logits: Tensor, draft: Draft | None, index: int) -> int:
        """The token of this place."""
        if self._vocab is not None:
            logits[self._vocab :] = REMOVED
        if draft is None or self._how.is_greedy:
            token = choose_token(logits, self._how, index, self._counts)
        else:
            shares = token_shares(self._cut(logits), self._how, self._counts)
            token = accept_or_replace(shares, draft, self._how.seed, index)
        self._counts.add(token)
        if self._observe is not None:
            self._observe(logits, token)
        return token


def accept_or_replace(shares: Float[Tensor, " vocab"], draft: Draft, seed: int, index: int) -> int:
    """The draft with probability min(1, p / q), else a token drawn from max(p - q, 0): distributed as p, `shares`."""
    p, q = float(shares[draft.token]), float(draft.shares[draft.token])
    if keyed_uniform(seed, index, _ACCEPT) * q < p:
        return draft.token
    rest = (shares - draft.shares).clamp(min=0.0)
    return _drawn(rest if float(rest.sum()) > 0 else shares, seed, index)


def _drawn(shares: Float[Tensor, " vocab"], seed: int, index: int, stream: int = 0) -> int:
    return draw(shares.log()[None], [keyed_uniform(seed, index, stream)])[0]
