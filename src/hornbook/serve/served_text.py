"""One text while it is generated: how its next token is chosen, and what of it can be shown."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.model.generate.sampling import REMOVED, TokenCounts, TokenScore, choose_tokens, score_tokens
from hornbook.model.generate.text_stream import StopStrings, TextStream
from hornbook.model.layers.transfer import to_device
from hornbook.serve.requests import Event, Finished, Piece, Reason, Request, ScoredToken
from hornbook.text.tokenizer.tokenizer import Tokenizer


class Text:
    """A choice of a request."""

    def __init__(self, request: Request, choice: int, tokenizer: Tokenizer) -> None:
        self.request, self.choice = request, choice
        self.token = -1
        """The newest one, whose keys and values are not computed yet."""
        self.tokens = 0
        """Number of tokens generated."""
        self.is_over = False
        self.sampling = request.samplings[choice]
        self.counts = TokenCounts(frozenset(request.prompt) if self.sampling.penalises else ())
        self._stream = TextStream(tokenizer, request.prompt)
        self._ends = StopStrings(request.stop)
        self._certain, self._shown = 0, 0
        self._waiting: list[ScoredToken] = []
        """Tokens whose text is not shown yet."""

    def take(self, token: int, score: TokenScore | None = None) -> list[Event]:
        """Add a token that was chosen; what becomes known by it."""
        self.token, self.tokens = token, self.tokens + 1
        if token in self.request.stop_ids:
            return self._finish("stop")
        if self.sampling.penalises:
            self.counts.add(token)
        if score is not None:
            self._waiting.append(ScoredToken(self._certain, score))
        more = self._stream.push(token)
        self._certain += len(more)
        shown = self._ends.push(more)
        if self._ends.found is not None:
            self.is_over = True
            return [*self._piece(shown, final=True), Finished(self.choice, "stop", self.tokens)]
        if self.tokens >= self.request.max_tokens:
            return [*self._piece(shown), *self._finish("length")]
        return self._piece(shown)

    def end(self) -> list[Event]:
        """End a text of which nothing is wanted."""
        return self._finish("length")

    def _piece(self, text: str, *, final: bool = False) -> list[Event]:
        """Text to show, with the scores of tokens that begin within what is shown."""
        self._shown += len(text)
        ready = [each for each in self._waiting if each.start < self._shown]
        self._waiting = [] if final else self._waiting[len(ready) :]
        return [Piece(self.choice, text, tuple(ready))] if text or ready else []

    def _finish(self, reason: Reason) -> list[Event]:
        """Show the rest and end the text."""
        self.is_over = True
        text = self._ends.push(self._stream.flush())
        reason = reason if self._ends.found is None else "stop"
        text += self._ends.flush()
        self._shown += len(text)
        scores = tuple(each for each in self._waiting if self._ends.found is None or each.start < self._shown)
        self._waiting = []
        rest: list[Event] = [Piece(self.choice, text, scores)] if text or scores else []
        return [*rest, Finished(self.choice, reason, self.tokens)]


def without_padding(logits: Tensor, vocab: int) -> Tensor:
    """Logits [rows, ids] in which ids from `vocab` on, which are no tokens, are never chosen."""
    if vocab < logits.shape[-1]:
        logits[:, vocab:] = REMOVED
    return logits


def next_tokens(texts: Sequence[Text], logits: Float[Tensor, "texts vocab"]) -> list[tuple[Request, Event]]:
    """Give each text its next token by its logits; what becomes known by them."""
    chosen = _biased(texts, logits)
    samplings, counts = [each.sampling for each in texts], [each.counts for each in texts]
    tokens = choose_tokens(chosen, samplings, [each.tokens for each in texts], counts)
    scores: dict[int, TokenScore] = {}
    tops = {row: top for row, each in enumerate(texts) if (top := each.request.logprobs) is not None}
    if tops:
        rows = list(tops)
        scores = dict(
            zip(rows, score_tokens(logits[rows], [tokens[row] for row in rows], list(tops.values())), strict=True)
        )
    made = (
        (each, each.take(token, scores.get(row))) for row, (each, token) in enumerate(zip(texts, tokens, strict=True))
    )
    return [(each.request, event) for each, events in made for event in events]


def _biased(texts: Sequence[Text], logits: Tensor) -> Tensor:
    """The logits with what requests add to them; themselves where they add nothing."""
    biased = {row: each.request.bias for row, each in enumerate(texts) if each.request.bias}
    if not biased:
        return logits
    logits = logits.clone()
    for row, bias in biased.items():
        ids = to_device(torch.tensor(list(bias)), logits.device)
        logits[row, ids] += to_device(torch.tensor(list(bias.values()), dtype=logits.dtype), logits.device)
    return logits
