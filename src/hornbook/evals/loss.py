"""Loss and bits-per-byte over validation tokens.

Bits-per-byte = total negative log-likelihood / (ln 2 x UTF-8 bytes of the predicted text): the measurement that
can be compared between tokenizers and with a compressor. The bits of end-of-text predictions count, although
they stand for no byte, so that it is never better than a real code of the documents.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.corpus import Stream
from hornbook.data.packing.plan import Plan
from hornbook.evals.task import TokenModel, score_batches
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.detection import detections
from hornbook.parallel.world import World


@dataclass(frozen=True)
class LossScores:
    """Sums over a set of predictions; scores of parts add up to the scores of the whole."""

    nats: float = 0.0
    tokens: float = 0.0
    bytes: int = 0
    documents: Float[np.ndarray, "documents 4"] = field(default_factory=lambda: np.empty((0, 4)), compare=False)
    """Number of the document in its source, nats, tokens, bytes; empty unless documents were asked for."""

    def __add__(self, other: "LossScores") -> "LossScores":
        documents = np.concatenate([self.documents, other.documents])
        return LossScores(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes, documents)

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
class DetectionScores(LossScores):
    """Of a generator, and of the model that tells its replacements; sums over tokens."""

    told: float = 0.0
    """Tokens that are told: all but padding."""
    told_nats: float = 0.0
    right: float = 0.0
    """Tokens of which it is told rightly whether they were replaced."""
    replaced: float = 0.0
    found: float = 0.0
    """Replaced tokens that are told to be."""
    weighted: float = 0.0
    """`told_nats`, times the weight that the loss of telling has in training."""

    def __add__(self, other: "LossScores") -> "DetectionScores":
        assert isinstance(other, DetectionScores)
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self) if each.compare
        }
        return DetectionScores(**sums)

    @property
    def objective(self) -> float:
        """What training minimises: the generator's loss and the weighted loss of telling."""
        return self.loss + self._mean(self.weighted)

    @property
    def summary(self) -> str:
        """Both losses and the share of replaced tokens that is found."""
        found = f"detection loss {self._mean(self.told_nats):.4f}, {self._found:.1%} of replaced tokens found"
        return f"{super().summary}, {found}"

    def as_dict(self) -> dict[str, float | int]:
        """`loss` and `bits_per_byte` are of the generator."""
        return super().as_dict() | {
            "objective": self.objective,
            "detection_loss": self._mean(self.told_nats),
            "detection_accuracy": self._mean(self.right),
            "replaced_share": self._mean(self.replaced),
            "replaced_found": self._found,
        }

    def _mean(self, of: float) -> float:
        return of / self.told if self.told else math.nan

    @property
    def _found(self) -> float:
        return self.found / self.replaced if self.replaced else math.nan


@dataclass(frozen=True)
class LossTask:
    """How well a model predicts the tokens of a source."""

    name: str
    """The source."""
    batches: Iterable[Batch]
    token_bytes: Int[Tensor, " vocab"]
    """UTF-8 bytes that each token id stands for; 0 for special tokens."""
    pieces: "Pieces | None" = None
    """Where given, scores are kept by document."""

    def score(self, model: TokenModel, world: World) -> LossScores:
        """Targets of weight zero (padding, ends of documents without an end token) do not count."""

        def sums(batch: Batch, losses: Tensor) -> np.ndarray:
            nats = float((losses.double() * batch.weights.double()).sum())
            num_bytes = int(self.token_bytes[batch.targets[batch.weights > 0]].sum())
            return np.array([[nats, float(batch.weights.sum(dtype=torch.float64)), num_bytes]])

        if self.pieces is not None:
            return self._by_document(model, world, self.pieces)
        rows = score_batches(world, self.batches, 3, lambda batch: [model.evaluate(batch)], sums)[:, 1:].tolist()
        return sum((LossScores(nats, tokens, int(size)) for nats, tokens, size in rows), LossScores())

    def _by_document(self, model: TokenModel, world: World, pieces: "Pieces") -> LossScores:
        def sums(batch: Batch, losses: Tensor) -> np.ndarray:
            weights = batch.weights.double()
            sizes = self.token_bytes[batch.targets] * (weights > 0)
            values = torch.stack([losses.double() * weights, weights, sizes.double()], 2)
            return pieces.sums(batch, values.numpy())

        rows = score_batches(world, self.batches, 4, lambda batch: [model.evaluate(batch)], sums)[:, 1:]
        numbers, which = np.unique(rows[:, 0], return_inverse=True)
        found = np.zeros((len(numbers), 4))
        found[:, 0] = numbers
        np.add.at(found[:, 1:], which, rows[:, 1:])
        nats, tokens, size = found[:, 1:].sum(0).tolist()
        return LossScores(nats, tokens, int(size), found)


@dataclass(frozen=True)
class DetectionTask:
    """How well replaced tokens of a source are told, and how well the generator predicts what it replaces."""

    name: str
    """The source."""
    batches: Iterable[Batch]
    token_bytes: Int[Tensor, " vocab"]
    """UTF-8 bytes that each token id stands for; 0 for special tokens."""
    weight: float
    """Of the loss of telling, beside the generator's (`train.loss.detection`)."""

    def score(self, model: Engine, world: World) -> DetectionScores:
        """The draws are those of each row's place in the validation text: always the same ones of the same model."""

        def sums(batch: Batch, measured: Tensor) -> np.ndarray:
            assert batch.detection is not None
            nats, told_nats, replaced, told = measured.double().unbind(2)
            counts = batch.detection.weights(batch).double()
            num_bytes = int(self.token_bytes[batch.targets[batch.weights > 0]].sum())
            found = [nats.sum(), batch.weights.sum(dtype=torch.float64), torch.tensor(num_bytes), counts.sum()]
            found += [told_nats.sum(), ((replaced == told) * counts).sum(), replaced.sum(), (replaced * told).sum()]
            return np.array([[float(each) for each in found]])

        rows = score_batches(world, self.batches, 8, lambda batch: [detections(model, batch)], sums)[:, 1:].tolist()
        none = DetectionScores().documents
        scores = (
            DetectionScores(row[0], row[1], int(row[2]), none, *row[3:], weighted=self.weight * row[4]) for row in rows
        )
        return sum(scores, DetectionScores())


class Pieces:
    """Which document of a source each token of a row is from."""

    def __init__(self, stream: Stream, plan: Plan) -> None:
        self._plan = plan
        starts = zip(stream.shards, stream.starts.tolist(), strict=False)
        self._ends = np.concatenate([shard.ends.astype(np.int64) + start for shard, start in starts])

    def sums(self, batch: Batch, values: Float[np.ndarray, "rows sequence n"]) -> Float[np.ndarray, "pieces n+1"]:
        """Number of the document and sums of the values of each piece of a document in a batch."""
        offsets, begins, sizes = self._plan.segments(batch.samples.numpy())
        found = []
        for row, own in enumerate(values):
            parts = range(int(offsets[row]), int(offsets[row + 1]))
            positions = np.concatenate([np.arange(begins[part], begins[part] + sizes[part]) for part in parts])
            documents = np.searchsorted(self._ends, positions, side="right")
            edges = np.concatenate([[0], np.flatnonzero(np.diff(documents)) + 1])
            found.append(np.column_stack([documents[edges], np.add.reduceat(own[: len(documents)], edges)]))
        return np.concatenate(found)
