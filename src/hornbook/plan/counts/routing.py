"""Loads of experts by the choices of routers, and copies of tokens that travel between expert ranks."""

from math import comb
from typing import NamedTuple

import numpy as np

from hornbook.model.config.mlp_config import expert_room


class Loads(NamedTuple):
    """Choices that fall on each expert, int64 [experts]."""

    served: np.ndarray
    dropped: np.ndarray
    """Choices without room (`model.mlp.capacity`)."""

    @property
    def _all(self) -> np.ndarray:
        return self.served + self.dropped

    @property
    def busiest(self) -> float:
        """Load of the busiest expert over the mean: 1 where use is even."""
        return float(self._all.max() / self._all.mean())

    @property
    def evenness(self) -> float:
        """Entropy of the loads over that of even loads: 1 where use is even, 0 where one expert has all."""
        shares = self._all[self._all > 0] / self._all.sum()
        return float(-(shares * np.log(shares)).sum() / np.log(len(self._all)))

    @property
    def unused(self) -> int:
        """Experts that no token chooses."""
        return int((self._all == 0).sum())

    @property
    def share_dropped(self) -> float:
        """Share of all choices that find no room."""
        return float(self.dropped.sum() / self._all.sum())


def loads_of(choices: np.ndarray, experts: int, capacity: float | None) -> Loads:
    """Loads by the experts of each token, [rows, tokens, active].

    Each row has room of its own, so the numbers do not depend on which tokens of it come first.
    """
    _, tokens, active = choices.shape
    loads = np.stack([np.bincount(row.ravel(), minlength=experts) for row in choices])
    room = tokens if capacity is None else expert_room(capacity, active, experts, tokens)
    served = np.minimum(loads, room)
    return Loads(served.sum(0), (loads - served).sum(0))


def untrained_choices(data: bytes, experts: int, active: int) -> dict[str, np.ndarray]:
    """Experts of the bytes of a text, [1, tokens, active], by routers that have learned nothing: of even draws for each
    byte, and of scores that depend on the value of the byte alone."""
    draw, values, first = np.random.default_rng(0), np.frombuffer(data, np.uint8), experts - active
    scores = {
        "at random": draw.random((len(values), experts), np.float32),
        "by the byte alone": draw.random((256, experts), np.float32)[values],
    }
    return {name: np.argpartition(each, max(first - 1, 0), 1)[None, :, first:] for name, each in scores.items()}


def other_ranks(experts: int, active: int, ranks: int) -> float:
    """Ranks besides its own that a token goes to, if its experts are drawn evenly: it goes once to each that holds one.

    Each rank holds as many experts as others, or one more (hypergeometric: none of its experts is drawn).
    """
    held, more = divmod(experts, ranks)
    missed = [comb(experts - held - (rank < more), active) / comb(experts, active) for rank in range(ranks)]
    return (ranks - 1) / ranks * (ranks - sum(missed))


def sent_bytes(tokens: int, copies: float, width: int, active: int, itemsize: int) -> int:
    """Bytes that a rank sends to others in one layer, there and back, forward: states of `width` values both ways, and
    on the way there the weights (float32) and numbers (int64) of a token's experts."""
    return round(tokens * copies * (2 * itemsize * width + 12 * active))
