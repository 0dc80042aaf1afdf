"""Loss and bits-per-byte over held-out tokens.

Bits-per-byte = total negative log-likelihood / (ln 2 x UTF-8 bytes of the predicted text): the figure that
can be compared between tokenizers and with a compressor. The bits of end-of-text predictions count, although
they stand for no byte, so that the figure is never better than a real code of the documents.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.parallel.world import DATA, World


class Evaluator(Protocol):
    """What evaluation asks of an engine."""

    @property
    def world(self) -> World:
        """The ranks that evaluate together."""
        ...

    def evaluate(self, batch: Batch) -> Float[Tensor, "rows sequence"]:
        """Negative log-likelihood of each target, in nats."""
        ...


@dataclass(frozen=True)
class Score:
    """Sums over a set of predictions; scores of parts add up to the score of the whole."""

    nats: float = 0.0
    tokens: float = 0.0
    bytes: int = 0

    def __add__(self, other: "Score") -> "Score":
        return Score(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes)

    @property
    def loss(self) -> float:
        """Mean nats per predicted token; NaN where nothing was predicted."""
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the predicted text; NaN where nothing was predicted."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def summary(self) -> str:
        """The figure for people beside the loss."""
        return f"{self.bits_per_byte:.4f} bits per byte"

    def as_dict(self) -> dict[str, float | int]:
        """Figures as `eval --json` prints them."""
        return {
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "tokens": int(self.tokens),
            "bytes": self.bytes,
        }


def evaluate(engine: Evaluator, batches: Iterable[Batch], token_bytes: Int[Tensor, " vocab"]) -> Score:
    """Score `batches`; `token_bytes` gives the UTF-8 bytes each token id stands for (0 for special tokens).

    Targets of weight zero (padding, ends of documents without an end token) do not count. Ranks take turns, go through
    the model together, and all return the same score: the sum in the order of the batches, as one rank alone has it.
    """
    world, remaining = engine.world, iter(batches)
    parts: list[tuple[float, float, int]] = []
    while turn := list(itertools.islice(remaining, world.data_size)):
        mine = world.data_rank < len(turn)
        part = _score(engine, turn[world.data_rank if mine else 0], token_bytes)
        parts += [part if mine and number == world.data_rank else (0.0, 0.0, 0) for number in range(len(turn))]
    table = world.all_reduce_sum(torch.tensor(parts, dtype=torch.float64), DATA)
    return sum((Score(nats, tokens, int(size)) for nats, tokens, size in table.tolist()), Score())


def _score(engine: Evaluator, batch: Batch, token_bytes: Tensor) -> tuple[float, float, int]:
    """Nats, tokens and bytes of one batch."""
    losses = engine.evaluate(batch).cpu().double()
    nats = float((losses * batch.weights.double()).sum())
    num_bytes = int(token_bytes[batch.targets[batch.weights > 0]].sum())
    return nats, float(batch.weights.sum(dtype=torch.float64)), num_bytes
