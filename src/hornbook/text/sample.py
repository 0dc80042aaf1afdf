"""Which documents the tokenizer is trained on: an even sample of the training documents, the same every time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import xxhash

from hornbook.text.store import read_batches

_SPLIT_SEED = 0x686F726E626F6F6B  # "hornbook": changing it would move documents between the splits
_BATCH_BYTES = 2**20


def is_validation(cluster: str, share: float) -> bool:
    """Whether a cluster of equal documents (hex hash) is held out: a hash of its name below `share`."""
    return xxhash.xxh3_64_intdigest(cluster.encode(), seed=_SPLIT_SEED) < share * 2.0**64


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """`training_texts` as often as it is asked for."""

    shards: list[Path]
    validation: float
    max_bytes: int

    def __iter__(self) -> Iterator[list[str]]:
        return training_texts(self.shards, self.validation, self.max_bytes)


def training_texts(shards: list[Path], validation: float, max_bytes: int) -> Iterator[list[str]]:
    """Batches of texts of the training split, evenly over all shards, at most `max_bytes` in all.

    A document is taken when the bytes taken so far, with it, are at most their share of the bytes seen so far.
    """
    total = sum(_training_bytes(shard, validation) for shard in shards)
    share = min(1.0, max_bytes / total) if total else 0.0
    seen = taken = 0
    batch: list[str] = []
    filled = 0
    for rows in (rows for shard in shards for rows in read_batches(shard, ["text", "cluster", "bytes"])):
        texts, clusters, sizes = rows.columns
        for text, cluster, size in zip(texts, clusters.to_pylist(), sizes.to_pylist(), strict=True):
            if is_validation(cluster, validation):
                continue
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


def _training_bytes(shard: Path, validation: float) -> int:
    table = pq.read_table(shard, columns=["cluster", "bytes"])
    held_out = np.array([is_validation(cluster, validation) for cluster in table["cluster"].to_pylist()], dtype=bool)
    return int(table["bytes"].to_numpy()[~held_out].sum())
