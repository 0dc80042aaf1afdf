"""Which documents the tokenizer is trained on: an even sample of the training documents, the same every time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hornbook.text.splits import Split
from hornbook.text.store import batched, read_batches

_BATCH_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """`training_texts` as often as it is asked for."""

    shards: Mapping[Path, Split]
    max_bytes: int

    def __iter__(self) -> Iterator[list[str]]:
        return training_texts(self.shards, self.max_bytes)


def training_texts(shards: Mapping[Path, Split], max_bytes: int) -> Iterator[list[str]]:
    """Batches of texts of the training split, evenly over all shards of documents, at most `max_bytes` in all.

    A document is taken when the bytes taken so far, with it, are at most their share of the bytes seen so far.
    """
    total = sum(row["bytes"] for shard, split in shards.items() for row in _training_rows(shard, split))
    share = min(1.0, max_bytes / total) if total else 0.0
    for batch in batched(_take(shards, share), lambda row: row[1], _BATCH_BYTES):
        yield [text.as_py() for text, _ in batch]


def _take(shards: Mapping[Path, Split], share: float) -> Iterator[tuple[pa.Scalar, int]]:
    """(text, its bytes) of the documents that are taken."""
    seen = taken = 0
    for shard, split in shards.items():
        for row in _training_rows(shard, split, "text"):
            size = row["bytes"]
            seen += size
            if taken + size <= share * seen:
                taken += size
                yield row["text"], size


def _training_rows(shard: Path, split: Split, *columns: str) -> Iterator[dict[str, Any]]:
    """Rows of training documents with their bytes; the other `columns` are left as Arrow scalars, for few are read."""
    for batch in read_batches(shard, [*columns, *split.columns, "bytes"]):
        facts = batch.drop_columns(list(columns)).to_pylist()
        for row, *values in zip(facts, *(batch[name] for name in columns), strict=True):
            if split.subset(row) == "train":
                yield row | dict(zip(columns, values, strict=True))
