"""What turns positions into microbatches: one interface for rows of text and for pairs of source and target."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64

from hornbook.data.batch import Batch
from hornbook.data.config import DataConfig
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.packing.plan import Plan, Segments


class BuildContext(NamedTuple):
    """What batches are made from."""

    corpus: Corpus
    streams: Sequence[Stream]
    config: DataConfig
    sequence: int
    """Length of a row of text; neither side of a pair is longer."""
    seed: int
    evaluation: bool = False
    """Other draws than in training, masks at their evaluation rate, always `concat`."""


class SampleRefs(NamedTuple):
    """The samples of a global batch."""

    positions: Int64[np.ndarray, " n"]
    sources: Int64[np.ndarray, " n"]
    """Number of the stream."""
    rows: Int64[np.ndarray, " n"]
    """Row of its plan."""
    epochs: Int64[np.ndarray, " n"]
    """How often the plan was gone through before."""


class BuiltBatch(NamedTuple):
    """A global batch, from which each rank takes its microbatches."""

    total_weight: float
    token_hash: str
    microbatch: Callable[[int], Batch]
    """Microbatch of a number."""


class BatchBuilder(Protocol):
    """Makes batches from some streams."""

    plans: Sequence[Plan]
    """How each stream is cut into rows, the first time it is gone through."""

    def segments(self, refs: SampleRefs) -> Segments:
        """Which spans of the streams each sample is made from."""
        ...

    def build(self, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        """The samples as one global batch, in microbatches of `micro_batch` rows."""
        ...
