"""Pack plans: the spans of a stream that make up row i, for one source, sequence length and policy.

`concat` is arithmetic: row i is the window [i * sequence, (i + 1) * sequence) of the stream. `best_fit` is a
table computed once and kept next to the shards under the digest of its inputs.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import xxhash
from jaxtyping import Int64

from hornbook.data.corpus import Stream
from hornbook.data.packing.packing import VERSION, best_fit
from hornbook.errors import StorageError
from hornbook.files.durable import writing

Segments = tuple[Int64[np.ndarray, " rows+1"], Int64[np.ndarray, " segments"], Int64[np.ndarray, " segments"]]
"""Segments (spans of a stream) of some rows: start of each row's in the list, first token in the stream, length."""


class Plan(Protocol):
    """How one source is cut into rows."""

    rows: int
    """Number of rows in one pass over the source."""
    padding: int
    """Positions of all rows that hold no token."""
    digest: str
    """Equal digests mean equal rows."""

    def segments(self, rows: Int64[np.ndarray, " rows"]) -> Segments:
        """Stretches of the stream in each of `rows` (each in range(self.rows))."""
        ...


class ConcatPlan:
    """The stream cut every `sequence` tokens; only the last row is shorter."""

    def __init__(self, stream: Stream, sequence: int) -> None:
        self.sequence, self.tokens = sequence, stream.tokens
        self.rows = -(-self.tokens // sequence)
        self.padding = self.rows * sequence - self.tokens
        self.digest = xxhash.xxh3_128_hexdigest(f"concat {sequence} {stream.digest}".encode())

    def segments(self, rows: Int64[np.ndarray, " rows"]) -> Segments:
        """One window per row."""
        return concat_segments(rows, self.sequence, self.tokens)


def concat_segments(
    rows: Int64[np.ndarray, " rows"], sequence: int, tokens: int | Int64[np.ndarray, " rows"]
) -> Segments:
    """Window of each row in a stream of `tokens` tokens (one number, or one per row)."""
    begins = rows * sequence
    return np.arange(len(rows) + 1), begins, np.minimum(sequence, tokens - begins)


class TablePlan:
    """Rows listed in a table of pieces: row, first token in the stream, length."""

    def __init__(self, table: Int64[np.ndarray, "3 pieces"], sequence: int, tokens: int, digest: str) -> None:
        row_of, self._begins, self._lengths = table
        self.rows = int(row_of[-1]) + 1 if table.size else 0
        self._firsts = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=self.rows))])
        self.sequence, self.padding = sequence, self.rows * sequence - tokens
        self.digest = digest
        self.cut = 0
        """Documents of a labelled set that are longer than a row and lose their end."""
        self.dropped = 0
        """Those left out because no answer is within a row."""

    def segments(self, rows: Int64[np.ndarray, " rows"]) -> Segments:
        """The pieces of each row."""
        first = self._firsts[rows]
        counts = self._firsts[rows + 1] - first
        offsets = np.concatenate([[0], np.cumsum(counts)])
        lines = np.repeat(first - offsets[:-1], counts) + np.arange(offsets[-1])
        return offsets, self._begins[lines], self._lengths[lines]


class PlanSet:
    """The plans of several sources as one."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = list(plans)
        concat = [plan for plan in plans if isinstance(plan, ConcatPlan)]
        self._tokens = np.array([plan.tokens for plan in concat]) if len(concat) == len(plans) else None
        self._sequence = concat[0].sequence if concat else 0

    def segments(self, sources: Int64[np.ndarray, " rows"], rows: Int64[np.ndarray, " rows"]) -> Segments:
        """Segments of each row, a row of the plan with number `sources[row]`."""
        if self._tokens is not None:
            return concat_segments(rows, self._sequence, self._tokens[sources])
        row_of, begins, sizes = [], [], []
        for source in np.unique(sources):
            places = np.flatnonzero(sources == source)
            offsets, some_begins, some_sizes = self._plans[source].segments(rows[places])
            row_of.append(np.repeat(places, np.diff(offsets)))
            begins.append(some_begins)
            sizes.append(some_sizes)
        all_rows = np.concatenate(row_of)
        order = np.argsort(all_rows, kind="stable")
        offsets = np.searchsorted(all_rows[order], np.arange(len(rows) + 1))
        return offsets, np.concatenate(begins)[order], np.concatenate(sizes)[order]


def build_plan(
    stream: Stream, sequence: int, packing: Literal["concat", "best_fit"], cache: Path | None = None
) -> Plan:
    """Plan of one stream. A `best_fit` table is kept in the folder `cache` (if given and writable)."""
    if packing == "concat":
        return ConcatPlan(stream, sequence)
    key = xxhash.xxh3_64_hexdigest(f"best_fit {VERSION} {sequence} {stream.digest}".encode())
    table, content = kept_table(cache, f"best_fit-{key}", lambda: best_fit(stream_ends(stream), sequence))
    return TablePlan(table, sequence, stream.tokens, f"{key}{content}")


def kept_table(cache: Path | None, name: str, make: Callable[[], np.ndarray]) -> tuple[np.ndarray, str]:
    """The table kept in the folder `cache` under `name`, made if it is not there or damaged, and its hash."""
    table = _cached(cache, name)
    if table is None:
        table = make()
        _keep(cache, name, table)
    return table, _content(table)


def stream_ends(stream: Stream) -> Int64[np.ndarray, " documents"]:
    """END offset of each document in the stream."""
    parts = [shard.ends.astype(np.int64) + start for shard, start in zip(stream.shards, stream.starts, strict=False)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _content(table: np.ndarray) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(table).data)


def _cached(cache: Path | None, name: str) -> np.ndarray | None:
    """The kept table, if its content still has the hash that its name states."""
    for path in sorted(cache.glob(f"{name}-*.npy")) if cache is not None else []:
        with suppress(OSError, ValueError, EOFError):
            table = np.load(path, mmap_mode="r", allow_pickle=False)
            if path.stem.endswith(_content(table)):
                return np.asarray(table)
    return None


def _keep(cache: Path | None, name: str, table: np.ndarray) -> None:
    """Write the table under its final name in one step; if the folder is read-only, the next start builds it again."""
    if cache is None:
        return
    path = cache / f"{name}-{_content(table)}.npy"
    with suppress(OSError, StorageError):
        cache.mkdir(exist_ok=True)
        with writing(path, sync=False) as file:
            np.save(file, table, allow_pickle=False)
