"""What the engine is asked for, and what it answers: requests, pieces of text, ends."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hornbook.model.generate.sampling import Sampling, TokenScore

Reason = Literal["stop", "length"]
"""Why a text ended: by a token or string that ends it, or by its limit."""


class ScoredToken(NamedTuple):
    """A token and where its text begins."""

    start: int
    """Characters of the text before it."""
    score: TokenScore


class Piece(NamedTuple):
    """More text of one choice."""

    choice: int
    text: str
    scores: tuple[ScoredToken, ...] = ()
    """The tokens of the text, where log-probabilities are wanted."""


class Finished(NamedTuple):
    """The end of one choice."""

    choice: int
    reason: Reason
    tokens: int
    """Number of tokens generated."""


class PromptScores(NamedTuple):
    """Log-probabilities of the prompt's tokens from the second on; the first follows nothing."""

    scores: tuple[TokenScore, ...]


class Failed(NamedTuple):
    """The end of the whole request without its result."""

    status: int
    """HTTP status."""
    message: str


Event = Piece | Finished | PromptScores | Failed


@dataclass(eq=False)
class Request:
    """Continuations of one prompt."""

    prompt: list[int]
    samplings: Sequence[Sampling]
    """One for each choice."""
    max_tokens: int
    """At least 1, or 0 where only the prompt's scores are wanted."""
    deliver: Callable[[Event], None]
    """Called with each event, from a thread of the receiver's."""
    stop_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """How many of the likeliest tokens are wanted beside each; None: no log-probabilities."""
    score_prompt: bool = False
    bias: dict[int, float] = field(default_factory=dict)
    """Added to logits, by token."""
    deadline: float = float("inf")
    """Of `time.monotonic`."""
    cancelled: bool = False

    @property
    def is_late(self) -> bool:
        """Its time is over."""
        return time.monotonic() > self.deadline
