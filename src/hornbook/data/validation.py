"""Batches for evaluation: the held-out stream of a source from its start, every token read once."""

from collections.abc import Iterator

import numpy as np

from hornbook.data.batch import Batch
from hornbook.data.config import Causal, DataConfig, ObjectiveConfig
from hornbook.data.corpus import Corpus
from hornbook.data.making import Draws, Setting
from hornbook.data.objective import build_maker
from hornbook.data.plan import Plan
from hornbook.errors import UsageError

_CAUSAL = Causal()


def validation_plan(corpus: Corpus, source: str, sequence: int, max_tokens: int, objective: ObjectiveConfig) -> Plan:
    """Which documents the rows of `validation_batches` hold; `Batch.samples` are its rows."""
    config = DataConfig(objective=objective)
    stream = corpus.validation[source]
    return build_maker(Setting(corpus, [stream], config, sequence, 0, evaluation=True, limit=max_tokens)).plans[0]


def validation_batches(
    corpus: Corpus,
    source: str,
    *,
    sequence: int,
    micro_batch: int,
    max_tokens: int,
    document_mask: bool,
    objective: ObjectiveConfig = _CAUSAL,
    seed: int = 0,
) -> Iterator[Batch]:
    """Microbatches over the validation shards of `source`, in order.

    The first `max_tokens` tokens are read once each; what pads a row has weight 0. Under `document_mask` a window that
    begins inside a document sees nothing before the window. `samples` are row numbers, `sources` are 0. What an
    objective draws follows from `seed` and the row, never from the step.

    Raises:
        UsageError: the source has no validation shards, or the tokenizer lacks tokens that the objective needs.
    """
    if source not in corpus.validation:
        known = ", ".join(corpus.validation) or "none"
        raise UsageError(f"there is no validation data for source {source!r} (there is for: {known})")
    config = DataConfig(document_mask=document_mask, objective=objective)
    stream = corpus.validation[source]
    maker = build_maker(Setting(corpus, [stream], config, sequence, seed, evaluation=True, limit=max_tokens))
    rows = maker.plans[0].rows
    for first in range(0, rows, micro_batch):
        numbers = np.arange(first, min(first + micro_batch, rows), dtype=np.int64)
        none = np.zeros_like(numbers)
        yield maker.make(Draws(numbers, none, numbers, none), micro_batch).microbatch(0)
