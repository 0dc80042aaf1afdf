"""Batches for evaluation: the held-out stream of a source from its start, every token predicted once."""

from collections.abc import Iterator

import numpy as np
import torch

from hornbook.data.batch import Batch
from hornbook.data.corpus import Corpus
from hornbook.data.rows import RowReader
from hornbook.errors import UsageError


def validation_batches(
    corpus: Corpus, source: str, *, sequence: int, micro_batch: int, max_tokens: int, document_mask: bool
) -> Iterator[Batch]:
    """Microbatches over the validation shards of `source`, in order.

    The first `max_tokens` tokens are inputs once each; what pads the last row has weight 0. Under
    `document_mask` a window that begins inside a document sees nothing before the window. `samples` are row
    numbers, `sources` are 0.

    Raises:
        UsageError: the source has no validation shards.
    """
    if source not in corpus.validation:
        known = ", ".join(corpus.validation) or "none"
        raise UsageError(f"there is no validation data for source {source!r} (there is for: {known})")
    stream = corpus.validation[source]
    reader = RowReader(corpus, [stream], sequence=sequence, document_mask=document_mask)
    tokens = min(stream.tokens, max_tokens)
    rows = -(-tokens // sequence)
    for first in range(0, rows, micro_batch):
        numbers = np.arange(first, min(first + micro_batch, rows), dtype=np.int64)
        begins = numbers * sequence
        segments = np.arange(len(numbers) + 1), begins, np.minimum(sequence, tokens - begins)
        sources = np.zeros(len(numbers), np.int64)
        read = reader.read(sources, segments)
        yield Batch(
            read.tokens, read.targets, read.weights, read.positions, read.lengths,
            torch.from_numpy(numbers), torch.from_numpy(sources),
        )  # fmt: skip
