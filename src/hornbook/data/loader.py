"""The loader: global batches in a fixed order, from any point, with the names of the documents in them.

What it hands out is a pure function of (data, config, sequence, seed, clock, skipped windows). It holds two
numbers of state: the clock, which a checkpoint stores, and the windows, which the ledger stores.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from jaxtyping import Int64

from hornbook.data.batch import Batch, DocumentRef, GlobalBatch, rank_share
from hornbook.data.config import DataConfig
from hornbook.data.corpus import Corpus
from hornbook.data.mixture import build_stages
from hornbook.data.order import Order
from hornbook.data.plan import Plan, Segments, build_plan
from hornbook.data.prefetch import Prefetcher
from hornbook.data.rows import RowReader
from hornbook.data.windows import Windows, merge_windows, positions_of
from hornbook.errors import UsageError


class _Request(NamedTuple):
    """Everything a global batch depends on besides the loader's constants."""

    clock: int
    num_samples: int
    windows: Windows
    rank: int
    world: int


class Loader:
    """Deterministic global batches over the training split; build it with `build_loader`."""

    def __init__(
        self, corpus: Corpus, config: DataConfig, *, sequence: int, micro_batch: int, seed: int, prefetch: bool
    ) -> None:
        self.corpus, self.config = corpus, config
        self.sequence, self.micro_batch, self.seed = sequence, micro_batch, seed
        sizes = {name: stream.tokens for name, stream in corpus.train.items()}
        _check_length(sizes, sequence)
        self.sources, self._stages, self.notes = build_stages(config, sizes, sequence)
        self.source_tokens = {name: sizes[name] for name in self.sources}
        streams = [corpus.train[name] for name in self.sources]
        self.plans: list[Plan] = [
            build_plan(stream, sequence, config.packing, corpus.root / "plans") for stream in streams
        ]
        self.order = Order(self.sources, [plan.rows for plan in self.plans], self._stages, seed=seed, kind=config.order)
        self._reader = RowReader(corpus, streams, sequence=sequence, document_mask=config.document_mask)
        self._clock, self._windows = 0, merge_windows([])
        self._prefetcher = Prefetcher(self._make) if prefetch else None

    @property
    def clock(self) -> int:
        """Samples consumed so far."""
        return self._clock

    @property
    def windows(self) -> Windows:
        """Positions that are skipped: sorted, disjoint, half-open."""
        return self._windows

    def seek(self, clock: int) -> None:
        """Continue as if `clock` samples had been consumed; takes the same time for any clock."""
        if clock < 0:
            raise ValueError(f"the clock counts samples and is not negative, not {clock}")
        self._clock = clock

    def skip(self, windows: Iterable[tuple[int, int]]) -> None:
        """Never again take samples from these half-open windows of positions; added to those skipped before."""
        self._windows = merge_windows([*self._windows, *windows])

    def take(self, num_samples: int, rank: int = 0, world: int = 1) -> GlobalBatch:
        """The next `num_samples` samples, and of their microbatches those of this rank; moves the clock.

        Raises:
            IntegrityError: the tokens or document ends in a shard cannot be right.
        """
        if num_samples < 1:
            raise ValueError(f"a global batch has at least one sample, not {num_samples}")
        request = _Request(self._clock, num_samples, self._windows, rank, world)
        if self._prefetcher is None:
            batch = self._make(request)
        else:
            batch = self._prefetcher.get(request, request._replace(clock=self._clock + num_samples))
        self._clock += num_samples
        return batch

    def close(self) -> None:
        """Stop the prefetching thread."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _make(self, request: _Request) -> GlobalBatch:
        positions = positions_of(request.clock, request.num_samples, request.windows)
        sources, rows, _ = self.order.locate(positions)
        filled = self._reader.read(sources, self._segments(sources, rows))
        parts = [
            tensor.split(self.micro_batch)
            for tensor in (
                filled.tokens, filled.targets, filled.weights, filled.positions,
                torch.from_numpy(positions), torch.from_numpy(sources),
            )
        ]  # fmt: skip
        batches = []
        for j in rank_share(len(parts[0]), request.rank, request.world):
            tokens, targets, weights, places, samples, origins = (part[j] for part in parts)
            lengths = filled.lengths[j * self.micro_batch : (j + 1) * self.micro_batch]
            batches.append(Batch(tokens, targets, weights, places, lengths, samples, origins))
        return GlobalBatch(
            batches,
            float(filled.total_weight),
            filled.token_hash,
            int(positions[0]),
            request.num_samples,
            request.num_samples * self.sequence,
        )

    def _segments(self, sources: Int64[np.ndarray, " n"], rows: Int64[np.ndarray, " n"]) -> Segments:
        """Segments of rows of several sources, in the order of the rows."""
        if len(self.plans) == 1:
            return self.plans[0].segments(rows)
        counts = np.zeros(len(rows), np.int64)
        found = []
        for source in np.unique(sources):
            places = np.flatnonzero(sources == source)
            offsets, begins, sizes = self.plans[source].segments(rows[places])
            counts[places] = np.diff(offsets)
            found.append((np.repeat(places, counts[places]), begins, sizes))
        line_of = np.concatenate([lines for lines, _, _ in found])
        order = np.argsort(line_of, kind="stable")
        begins, sizes = (np.concatenate([part[k] for part in found])[order] for k in (1, 2))
        return np.concatenate([[0], np.cumsum(counts)]), begins, sizes

    def documents(self, sample: int) -> list[DocumentRef]:
        """The documents whose tokens are in the row of global position `sample`, in the order of the row."""
        sources, rows, _ = self.order.locate(np.array([sample], np.int64))
        source = int(sources[0])
        name = self.sources[source]
        shards = self.corpus.train[name].shards
        found = []
        _, begins, sizes = self.plans[source].segments(rows)
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
            for number, document, start, length in self._reader.documents(source, begin, size):
                shard = shards[number]
                row = shard.document(document)
                found.append(DocumentRef(name, shard.name, document, str(row["id"]), str(row["origin"]), start, length))
        return found

    def epochs(self, tokens: int) -> dict[str, float]:
        """How often each source is read in the first `tokens` tokens of training."""
        draws = self.order.draws(tokens // self.sequence)
        return {name: int(drawn) / plan.rows for name, drawn, plan in zip(self.sources, draws, self.plans, strict=True)}

    def epoch_tokens(self, epochs: float) -> int:
        """Length in tokens of `epochs` passes over all sources in use: whole rows, rounded up."""
        return -(-round(epochs * 1_000_000) * sum(plan.rows for plan in self.plans) // 1_000_000) * self.sequence

    @property
    def fingerprint(self) -> str:
        """Names the sequence of samples: data, mixture, order, packing, mask, sequence length and seed."""
        parts = [
            f"{self.seed} {self.sequence} {self.config.order} {self.config.document_mask}",
            *(f"{name} {plan.digest}" for name, plan in zip(self.sources, self.plans, strict=True)),
            *(f"{stage.first} {stage.counts.tolist()}" for stage in self._stages),
        ]
        return xxhash.xxh3_64_hexdigest("\n".join(parts).encode())

    def describe(self) -> str:
        """The data as a tree of lines: mixture, sources, shards, with fingerprints."""
        config = self.config
        mask = "attention inside documents" if config.document_mask else "attention over the row"
        lines = [f"mix [{self.fingerprint}] {config.order}, seed {self.seed}, rows of {self.sequence} tokens, {mask}"]
        for stage in self._stages[1:]:
            shares = ", ".join(f"{n} {w:.4g}" for n, w in zip(self.sources, stage.weights, strict=True) if w > 0)
            lines.append(f"|-- from token {stage.first * self.sequence:,}: {shares}")
        for number, (name, plan) in enumerate(zip(self.sources, self.plans, strict=True)):
            last = number == len(self.sources) - 1
            stream = self.corpus.train[name]
            lines.append(
                f"{'`--' if last else '|--'} {name} [{plan.digest[:16]}] weight {self._stages[0].weights[number]:.4g},"
                f" {stream.tokens:,} tokens, {stream.documents:,} documents"
            )
            lines.append(
                f"{'    ' if last else '|   '}`-- {config.packing}: {plan.rows:,} rows, {plan.padding:,} padded tokens,"
                f" {len(stream.shards)} shards [{stream.digest[:16]}]"
            )
        return "\n".join(lines)


def _check_length(sizes: dict[str, int], sequence: int) -> None:
    available = sum(sizes.values())
    if available < sequence:
        remedy = "give more text" if available < 2 else f"set train.sequence to at most {available}, or give more text"
        raise UsageError(f"train.sequence {sequence} is longer than the training data ({available} tokens): {remedy}")


def build_loader(
    config: DataConfig, path: Path | str, *, sequence: int, micro_batch: int, seed: int, prefetch: bool = True
) -> Loader:
    """Loader over the token shards in the data folder `path`.

    Args:
        sequence: tokens per row.
        micro_batch: rows per microbatch; it changes neither order nor token hash.
        prefetch: make the next global batch in a background thread.

    Raises:
        UsageError: no shards, unknown sources, or less text than one row.
        IntegrityError: a shard is missing, truncated or changed.
    """
    return Loader(Corpus.open(path), config, sequence=sequence, micro_batch=micro_batch, seed=seed, prefetch=prefetch)


def repetition_warnings(epochs: dict[str, float], limit: float = 4.0) -> list[str]:
    """Texts for sources that are read more than `limit` times.

    Up to four passes are about as good as new text (Muennighoff et al. 2023, arXiv 2305.16264).
    """
    return [
        f"source {name} is read {count:.1f} times: more than {limit:g} passes add little; lower its weight or add text"
        for name, count in epochs.items()
        if count > limit
    ]
