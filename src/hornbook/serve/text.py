"""One text while it is generated: how its next token is chosen, and what of it can be shown."""

import torch
from torch import Tensor

from hornbook.model.generate.sampling import REMOVED, TokenCounts, TokenScore, choose_token, score_token
from hornbook.model.generate.text_stream import StopStrings, TextStream
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
        self._sampling = request.samplings[choice]
        self._counts = TokenCounts(frozenset(request.prompt)) if self._sampling.penalises else None
        self._stream = TextStream(tokenizer, request.prompt)
        self._ends = StopStrings(request.stop)
        self._certain, self._shown = 0, 0
        self._waiting: list[ScoredToken] = []
        """Tokens whose text is not shown yet."""

    @property
    def takes_best(self) -> bool:
        """The next token is that of the largest logit, and nothing else of the logits is asked for."""
        plain = self._sampling.is_greedy and not self._sampling.penalises
        return plain and not self.request.bias and self.request.logprobs is None

    def choose(self, logits: Tensor) -> list[Event]:
        """Take the next token from its logits [vocab]; what becomes known by it."""
        chosen = logits
        if self.request.bias:
            chosen = logits.clone()
            for token, bias in self.request.bias.items():
                chosen[token] += bias
        token = choose_token(chosen, self._sampling, self.tokens, self._counts)
        score = None if self.request.logprobs is None else score_token(logits, token, self.request.logprobs)
        return self.take(token, score)

    def take(self, token: int, score: TokenScore | None = None) -> list[Event]:
        """Add a token that was chosen; what becomes known by it."""
        self.token, self.tokens = token, self.tokens + 1
        if token in self.request.stop_ids:
            return self._finish("stop")
        if self._counts is not None:
            self._counts.generated[token] += 1
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


def best_tokens(logits: Tensor) -> list[int]:
    """The likeliest token of each row."""
    with torch.no_grad():
        return logits.argmax(-1).tolist()
