"""The interface that turns samples into microbatches: rows of text, pairs of source and target, labelled texts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from hornbook.data.batch import Batch
from hornbook.data.config.data import DataConfig
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.order.random_keys import Keys, stream_keys
from hornbook.data.packing.plan import Plan, PlanSet, Segments


class BuildContext(NamedTuple):
    """The data and settings that batches are built from."""

    corpus: Corpus
    streams: Sequence[Stream]
    config: DataConfig
    sequence: int
    """Length of a row of text; neither side of a pair is longer."""
    seed: int
    evaluation: bool = False
    """Random draws other than in training, masks at their evaluation rate, packing always `concat`."""

    @property
    def keys(self) -> Keys:
        """Keys that random draws for rows of each stream follow from."""
        return stream_keys(self.seed, [stream.source for stream in self.streams], evaluation=self.evaluation)


class SampleRefs(NamedTuple):
    """The samples of a global batch, by row."""

    positions: Int64[np.ndarray, " n"]
    sources: Int64[np.ndarray, " n"]
    """Index of the stream."""
    rows: Int64[np.ndarray, " n"]
    """Row of its plan."""
    epochs: Int64[np.ndarray, " n"]
    """Number of passes over the plan before this one."""
    reach: Int64[np.ndarray, " n"] | None = None
    """How far attention reaches, where it is less than a row at first (`data.sequence_ramp`)."""


class BuiltBatch(NamedTuple):
    """A global batch, from which each rank takes its microbatches."""

    total_weight: float
    token_hash: str
    microbatch: Callable[[int], Batch]
    """Microbatch of a number."""


class BatchBuilder:
    """Base of what builds batches from some streams."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        """How each stream is cut into rows in its first epoch."""
        self._plan_set = PlanSet(plans)
        self.notes: list[str] = []
        """What a person should know about the data, once: conversations that were cut or left out."""

    def segments(self, refs: SampleRefs) -> Segments:
        """Spans of the streams that each sample is made from."""
        return self._plan_set.segments(refs.sources, refs.rows)

    def build(self, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        """The samples as one global batch, in microbatches of `micro_batch` rows."""
        raise NotImplementedError
