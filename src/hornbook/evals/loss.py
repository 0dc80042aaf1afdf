"""Loss and bits-per-byte over validation tokens.

Bits-per-byte = total negative log-likelihood / (ln 2 x UTF-8 bytes of the predicted text): the measurement that
can be compared between tokenizers and with a compressor. The bits of end-of-text predictions count, although
they stand for no byte, so that it is never better than a real code of the documents.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.evals.task import TokenModel, score_batches
from hornbook.parallel.world import World


@dataclass(frozen=True)
class LossScores:
    """Sums over a set of predictions; scores of parts add up to the scores of the whole."""

    nats: float = 0.0
    tokens: float = 0.0
    bytes: int = 0

    def __add__(self, other: "LossScores") -> "LossScores":
        return LossScores(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes)

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
        """The measurement for people beside the loss."""
        return f"{self.bits_per_byte:.4f} bits per byte"

    def as_dict(self) -> dict[str, float | int]:
        """Measurements as `eval --json` prints them."""
        return {
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "tokens": int(self.tokens),
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class LossTask:
    """How well a model predicts the tokens of a source."""

    name: str
    """The source."""
    batches: Iterable[Batch]
    token_bytes: Int[Tensor, " vocab"]
    """UTF-8 bytes that each token id stands for; 0 for special tokens."""

    def score(self, model: TokenModel, world: World) -> LossScores:
        """Targets of weight zero (padding, ends of documents without an end token) do not count."""

        def sums(batch: Batch) -> np.ndarray:
            losses = model.evaluate(batch).cpu().double()
            nats = float((losses * batch.weights.double()).sum())
            num_bytes = int(self.token_bytes[batch.targets[batch.weights > 0]].sum())
            return np.array([[nats, float(batch.weights.sum(dtype=torch.float64)), num_bytes]])

        rows = score_batches(world, self.batches, 3, sums)[:, 1:].tolist()
        return sum((LossScores(nats, tokens, int(size)) for nats, tokens, size in rows), LossScores())
