"""Which documents the tokenizer is trained on: an even sample of the training documents, the same every time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from hornbook.text.splits import Split
from hornbook.text.store import read_batches

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
    total = sum(_training_bytes(shard, split) for shard, split in shards.items())
    share = min(1.0, max_bytes / total) if total else 0.0
    seen = taken = 0
    batch: list[str] = []
    filled = 0
    batches = ((split, rows) for shard, split in shards.items() for rows in _read(shard, split, "text"))
    for each, rows in batches:
        facts = rows.drop_columns(["text"]).to_pylist()
        for text, row in zip(rows["text"], facts, strict=True):
            if each.subset(row) != "train":
                continue
            size = row["bytes"]
            seen += size
            if taken + size > share * seen:
                continue
            taken += size
            batch.append(text.as_py())
            filled += size
            if filled >= _BATCH_BYTES:
                yield batch
                batch, filled = [], 0
    if batch:
        yield batch


def _training_bytes(shard: Path, split: Split) -> int:
    rows = (row for batch in _read(shard, split) for row in batch.to_pylist())
    return sum(row["bytes"] for row in rows if split.subset(row) == "train")


def _read(shard: Path, split: Split, *columns: str) -> Iterator[pa.RecordBatch]:
    return read_batches(shard, [*columns, *split.columns, "bytes"])
