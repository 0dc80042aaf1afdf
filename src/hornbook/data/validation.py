"""The validation rows of a source: all of them, or some that are spread over all of its documents by hash.

The drawn rows follow from the source's name and its number of rows, not from the seed, the step, the number of ranks or
the microbatch: measurements of one run are over the same rows at every step, and so are those of two runs on the same
data. Drawn rows have the same text and the same masks as among all rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import xxhash
from jaxtyping import Int64

from hornbook.data.batch import Batch
from hornbook.data.batch_builder import BatchBuilder, BuildContext, SampleRefs
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Causal, ObjectiveConfig
from hornbook.data.corpus import Corpus
from hornbook.data.order.random_keys import key_of, permute
from hornbook.data.packing.plan import Plan
from hornbook.errors import UsageError

_CAUSAL = Causal()


@dataclass(frozen=True)
class HeldOut:
    """Validation rows of one source; `held_out` makes one."""

    source: str
    builder: BatchBuilder
    sizes: Int64[np.ndarray, " all"]
    """Tokens of text in each row of the source."""
    rows: Int64[np.ndarray, " rows"]
    """Numbers of the rows to score, ascending."""
    settings_key: str
    """Settings that a measurement depends on: the objective, and whether attention stays inside documents."""
    labelled: bool
    """Labels are predicted, not tokens."""

    @property
    def plan(self) -> Plan:
        """Which documents the rows hold; `Batch.samples` are its rows."""
        return self.builder.plans[0]

    @property
    def read(self) -> int:
        """Tokens of text in the rows to score."""
        return int(self.sizes[self.rows].sum())

    @property
    def of(self) -> int:
        """Tokens of text in all rows."""
        return int(self.sizes.sum())

    @property
    def whole(self) -> "HeldOut":
        """All rows of the source."""
        return replace(self, rows=np.arange(len(self.sizes)))

    @cached_property
    def digest(self) -> str:
        """Hash of the rows and settings: measurements with equal digests can be compared."""
        rows = xxhash.xxh3_64_hexdigest(self.rows.tobytes())
        return xxhash.xxh3_64_hexdigest(f"{self.source} {self.plan.digest} {rows} {self.settings_key}".encode())

    def batches(self, micro_batch: int) -> Iterator[Batch]:
        """Microbatches of the rows in their order. `samples` are row numbers, `sources` are 0; padding has weight 0."""
        for first in range(0, len(self.rows), micro_batch):
            numbers = self.rows[first : first + micro_batch]
            none = np.zeros_like(numbers)
            yield self.builder.build(SampleRefs(numbers, none, numbers, none), micro_batch).microbatch(0)


def held_out(
    corpus: Corpus,
    source: str,
    *,
    sequence: int,
    document_mask: bool,
    max_tokens: int | None = None,
    objective: ObjectiveConfig = _CAUSAL,
    seed: int = 0,
) -> HeldOut:
    """The validation rows of `source`: all, or as many as hold at most `max_tokens` tokens, and at least one.

    Under `document_mask` a row that starts inside a document sees nothing before the row. Random draws of an objective
    (masks, spans) follow from `seed` and the row. Raises UsageError where the source has no validation shards, or the
    tokenizer lacks tokens that the objective needs.
    """
    if source not in corpus.validation:
        known = ", ".join(corpus.validation) or "none"
        raise UsageError(f"there is no validation data for source {source!r} (there is for: {known})")
    config = DataConfig(document_mask=document_mask, objective=objective)
    context = BuildContext(corpus, [corpus.validation[source]], config, sequence, seed, evaluation=True)
    builder: BatchBuilder = objective.build(context)
    sizes = _sizes(builder.plans[0])
    rows = np.arange(len(sizes)) if max_tokens is None else _drawn(source, sizes, max_tokens)
    settings_key = f"{document_mask} {objective.evaluation_key}"
    return HeldOut(source, builder, sizes, rows, settings_key, objective.predicts_labels)


def _sizes(plan: Plan) -> Int64[np.ndarray, " rows"]:
    offsets, _, sizes = plan.segments(np.arange(plan.rows))
    sums = np.concatenate([[0], np.cumsum(sizes)])
    return np.diff(sums[offsets])


def _drawn(source: str, sizes: Int64[np.ndarray, " all"], max_tokens: int) -> Int64[np.ndarray, " rows"]:
    """The first rows of a permutation that depends on nothing but the source's name and the number of its rows."""
    order = permute(np.arange(len(sizes)), len(sizes), key_of("held out", source))
    count = int(np.searchsorted(np.cumsum(sizes[order]), max_tokens, side="right"))
    return np.sort(order[: max(count, 1)])
