"""Records that leave the data room: microbatches, global batches, references to documents.

A global batch is what one optimizer step learns from. It is cut into microbatches on a grid that depends
on nothing but `micro_batch`, so that any number of processes computes the same microbatches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hornbook.data.config.preferences import Comparing


@dataclass(frozen=True, slots=True)
class Source:
    """Input of the encoder of an encoder-decoder; fields as in `Batch`."""

    tokens: Int64[Tensor, "rows inputs"]
    positions: Int64[Tensor, "rows inputs"]
    document_lengths: list[tuple[int, ...]]
    """Per row as many pieces as the target has, none empty: piece k of the target attends to piece k of the source.

    A row that is not full on both sides ends with a piece of padding on both.
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """One microbatch: rows that go through the model together."""

    tokens: Int64[Tensor, "rows sequence"]
    """Inputs."""
    targets: Int64[Tensor, "rows sequence"]
    """Id that each position should predict; where the weight is 0, a valid id without meaning."""
    weights: Float[Tensor, "rows sequence"]
    """1 where the prediction counts; 0 at padding, and where the objective predicts nothing.

    Causal: 0 after a document whose stored end is its last token. Prefix: 0 where the target is in the prefix.
    Masked: 1 at the chosen tokens only, whose targets are the original tokens. Labels: 1 at tokens that carry
    one; where the answer is a span of the text, at the first token of the document.
    """
    positions: Int64[Tensor, "rows sequence"]
    """Position of each token in its piece of a document; in its row where attention is not confined to documents."""
    document_lengths: list[tuple[int, ...]]
    """Per row, the lengths of the pieces that attend only to themselves; they sum to `sequence`."""
    samples: Int64[Tensor, " rows"]
    """Global positions in the order of the data."""
    sources: Int64[Tensor, " rows"]
    """Which source each row is from, an index into `GlobalIndex.sources`."""
    is_empty: bool = False
    """No target counts: a stand-in on a rank that has no microbatch left while others have their last."""
    prefixes: list[tuple[int, ...]] | None = None
    """Per row and piece, how many leading tokens are seen in both directions; None: none anywhere."""
    types: Int64[Tensor, "rows sequence"] | None = None
    """1 from the second text of a pair on (BERT's token types), else 0; None: 0 everywhere."""
    values: Float[Tensor, "rows sequence outputs"] | None = None
    """Labels that are numbers, in place of `targets`; without meaning where the weight is 0."""
    source: Source | None = None
    """Of encoder-decoders, the input of the encoder; `tokens` are then that of the decoder."""
    compared: "Compared | None" = None
    """Which tokens are answers to be compared; `weights` are then 1 at those that take part."""
    teacher_ids: Int64[Tensor, "rows sequence top"] | None = None
    """The likeliest tokens by the teacher of a distillation, in place of each target."""
    teacher_logs: Float[Tensor, "rows sequence top"] | None = None
    """Their log-probabilities, float32."""
    mixed: "Mixed | None" = None
    """What the texts are mixed with, where the objective asks for mixup."""
    detection: "Detection | None" = None
    """Which tokens are told apart from replaced ones; `weights` are then 1 at those that a generator replaces."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """The other text of each (`hornbook.data.labelled.mixup`)."""

    tokens: Int64[Tensor, "rows sequence"]
    """At the same place of the other text; a text's own behind the other's end."""
    shares: Float[Tensor, "rows sequence"]
    """How much of itself stays, of vectors and of the loss: from [0, 1], the same for a whole text."""
    targets: Int64[Tensor, "rows sequence"]
    """As those of the batch, with the other's label."""
    values: Float[Tensor, "rows sequence outputs"] | None
    """The same of labels that are numbers."""


@dataclass(frozen=True, slots=True)
class Detection:
    """What is told of every token of some rows (`hornbook.model.heads.replaced`)."""

    used: Int64[Tensor, " rows"]
    """Tokens of each row, behind which there is padding."""
    share: float
    """Of the global batch: masked tokens over all, so that a sum over all that is divided by the former is a mean."""

    def weights(self, batch: Batch) -> Float[Tensor, "rows sequence"]:
        """1 at the tokens of a batch that are told, float32; none of a row in which nothing counts."""
        weights = batch.weights
        return (torch.arange(weights.shape[1]) < self.used[:, None]) * (weights > 0).any(1, keepdim=True).float()


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared in some rows, for objectives that compare answers (`hornbook.data.config.preferences`)."""

    objective: Comparing
    marks: Int64[Tensor, "rows sequence"]
    """2 * number + answered of each target: the number in its row, from 1, of the sequence it is in, and whether it is
    part of the answer; 0 where there is none."""
    sides: Int64[Tensor, "rows most"]
    """Of each sequence of a row: CHOSEN, REJECTED or MISMATCHED; -1 behind the last."""
    references: Float[Tensor, "rows most"]
    """Log-probability of its answer by the reference model, in nats; 0 where there is none."""
    counts: tuple[int, int, int]
    """Of the global batch: chosen answers, rejected ones, and tokens whose own loss counts (ORPO)."""

    @property
    def row_weights(self) -> Float[Tensor, " rows"]:
        """Comparisons in each row, of which the weight of the global batch is the sum."""
        judged = self.sides == CHOSEN
        return (judged | (self.sides == REJECTED) if self.objective.labels == "rated" else judged).sum(1).float()


CHOSEN, REJECTED, MISMATCHED = 0, 1, 2
"""Sides of a comparison; KTO compares with prompts that have another's answer."""

Record = TypeVar("Record", Batch, Source, Compared, Mixed, Detection)


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The samples of one optimizer step."""

    batches: list[Batch]
    """Microbatches of this rank, in the order of the grid; every rank has the same number of them."""
    total_weight: float
    """Sum of the weights over the whole global batch (all ranks)."""
    token_hash: str
    """xxh3_64 (hex) of the input ids of the whole global batch: int32, little endian, in row order.

    For encoder-decoders: all sources, then all decoder inputs, each piece followed by its last target; no padding.
    """
    first_sample: int
    """Global position of the first sample."""
    num_samples: int
    """Samples in the whole global batch."""
    tokens: int
    """Tokens in the whole global batch: samples times sequence length (of encoder-decoders, the longest source)."""

    @property
    def positions_computed(self) -> tuple[int, int]:
        """Positions of this rank's microbatches, padding included: of `tokens`, and of the encoder's input."""
        sources = (batch.source.tokens.numel() for batch in self.batches if batch.source is not None)
        return sum(batch.tokens.numel() for batch in self.batches), sum(sources)


@dataclass(frozen=True, slots=True)
class DocumentRef:
    """A piece of a document in a row."""

    source: str
    shard: str
    """Path of the shard below the data folder, without ending."""
    document: int
    """Row of the document in its shard."""
    id: str
    origin: str
    start: int
    """First token of the piece, counted in the stored document (its delimiter is token 0)."""
    length: int
    """Tokens of the piece."""


def rank_share(microbatches: int, rank: int, world: int) -> Sequence[int]:
    """Numbers of the microbatches that rank `rank` of `world` computes: every world-th one of the fixed grid."""
    assert 0 <= rank < world, (rank, world)
    return range(rank, microbatches, world)


def empty_microbatch(batch: Batch) -> Batch:
    """A microbatch of the same rows in which no target counts."""
    return replace(batch, weights=torch.zeros_like(batch.weights), is_empty=True)


def fill_rows(batch: Batch, rows: int) -> Batch:
    """The batch with copies of its last row in which no target counts, until it has `rows`."""
    have = len(batch.tokens)
    if have >= rows:
        return batch
    taken = torch.tensor([*range(have), *[have - 1] * (rows - have)])
    filled = _rows_of(batch, taken)
    filled.weights[have:] = 0.0
    return filled


def _rows_of(record: Record, taken: Int64[Tensor, " rows"]) -> Record:
    """Some rows of every field."""
    rows = taken.tolist()
    return _changed(record, lambda tensor: tensor[taken], lambda per_row: [per_row[row] for row in rows])


def pinned(batch: GlobalBatch) -> GlobalBatch:
    """The same in memory that a GPU reads by itself, while the host goes on."""
    return replace(batch, batches=[_changed(each, Tensor.pin_memory, lambda rows: rows) for each in batch.batches])


def _changed(record: Record, of_tensor: Callable[[Tensor], Tensor], of_rows: Callable[[list], list]) -> Record:
    """A record with every tensor, and every list of rows, changed."""
    changed: dict[str, Any] = {}
    for name in type(record).__dataclass_fields__:
        value = getattr(record, name)
        if isinstance(value, Tensor):
            changed[name] = of_tensor(value)
        elif isinstance(value, list):
            changed[name] = of_rows(value)
        elif isinstance(value, Source | Compared | Mixed | Detection):
            inner: Any = value
            changed[name] = _changed(inner, of_tensor, of_rows)
    return replace(record, **changed)
