"""The global index: source, row and documents of each position, and their tensors.

Everything here is a pure function of (data, config, sequence, seed) and a position. The loader adds the state: the
clock and the skipped ranges.
"""

import math
from dataclasses import replace

import numpy as np
import torch
import xxhash
from jaxtyping import Int32, Int64

from hornbook.data.batch import Batch, DocumentRef, GlobalBatch, empty_microbatch, rank_share
from hornbook.data.batch_builder import BatchBuilder, BuildContext, BuiltBatch, SampleRefs
from hornbook.data.config.data import Curriculum, DataConfig
from hornbook.data.config.objectives import Causal
from hornbook.data.corpus import Corpus
from hornbook.data.order.curriculum import competence, document_difficulty, draw_positions, paced_order, row_difficulty
from hornbook.data.order.mixture import build_stages, cap_epochs
from hornbook.data.order.random_keys import key_of
from hornbook.data.order.sampler import Sampler
from hornbook.data.packing.plan import Segments, stream_ends
from hornbook.data.shards.shard_table import ShardTable
from hornbook.data.teacher import TeacherTable
from hornbook.errors import UsageError


class GlobalIndex:
    """All samples of the training split, addressed by global position."""

    def __init__(self, corpus: Corpus, config: DataConfig, *, sequence: int, seed: int) -> None:
        """Raises UsageError for unknown sources, weights that cannot be met, or less text than one row."""
        self.corpus, self.config, self.sequence, self.seed = corpus, config, sequence, seed
        rearranged: Corpus = config.objective.training_corpus(corpus, seed)
        training = rearranged.train
        sizes = {name: stream.tokens for name, stream in training.items()}
        _check_length(sizes, sequence)
        self.sources, self.stages, self.notes = build_stages(config, sizes, sequence, corpus.replayed)
        """Names of the sources in use; their stages; where settings were taken otherwise than written."""
        self.source_tokens = {name: sizes[name] for name in self.sources}
        """Training tokens of each source in use."""
        _check_length(self.source_tokens, sequence)
        self.streams = [training[name] for name in self.sources]
        self._builder: BatchBuilder = config.objective.build(BuildContext(corpus, self.streams, config, sequence, seed))
        self.plans = self._builder.plans
        self.notes += getattr(self._builder, "notes", [])  # builders of other packages may have none
        rows = [plan.rows for plan in self.plans]
        if config.max_epochs is not None:
            self.stages, end = cap_epochs(self.stages, rows, config.max_epochs)
            if end is not None:
                self.notes.append(
                    f"data.max_epochs {config.max_epochs:g}: all sources are used up after {end * sequence:,} tokens; "
                    "from there on they are read again"
                )
        self._first_epochs = self._curriculum(config.curriculum) if config.curriculum.kind != "none" else {}
        self.sampler = Sampler(
            self.sources, rows, self.stages, seed=seed, kind=config.order, first_epochs=self._first_epochs
        )
        self._reach = config.sequence_ramp.batches(sequence)
        self._shards = ShardTable(corpus, self.streams)
        self.teacher: TeacherTable | None = None
        """What a teacher predicts at each token of the rows, for distillation."""

    def _curriculum(self, config: Curriculum) -> dict[int, Int64[np.ndarray, " rows"]]:
        """Rows of the first epoch of each source that is not replayed, from easy to hard."""
        end, found = -(-config.over_tokens // self.sequence), {}
        for source, (name, stream) in enumerate(zip(self.sources, self.streams, strict=True)):
            if name in self.corpus.replayed:
                continue
            rows = np.arange(self.plans[source].rows)
            segments = self._builder.segments(SampleRefs(rows, np.full_like(rows, source), rows, np.zeros_like(rows)))
            documents = document_difficulty(self.corpus.root, stream, config)
            difficulty = row_difficulty(documents, stream_ends(stream), segments)
            positions = draw_positions(self.stages, source, end, len(rows) + 1)
            if len(positions) > len(rows):
                self.notes.append(
                    f"data.curriculum.over_tokens {config.over_tokens:,}: source {name} is read once before then: its"
                    " hardest rows come by difficulty alone, and its second pass is shuffled"
                )
            shares = competence(config, positions[: len(rows)] * float(self.sequence))
            found[source] = paced_order(difficulty, shares, key_of("curriculum", self.seed, name))
        return found

    def batch(self, positions: Int64[np.ndarray, " n"], micro_batch: int, rank: int = 0, world: int = 1) -> GlobalBatch:
        """The samples at `positions` as one global batch, with the microbatches of one rank."""
        refs = self.refs(positions)
        built = self._taught(self._builder.build(refs, micro_batch), refs, micro_batch)
        count = len(positions)
        microbatches = -(-count // micro_batch)
        batches = [built.microbatch(j) for j in rank_share(microbatches, rank, world)]
        if len(batches) < -(-microbatches // world):  # only where the last step of a run is shorter than the others
            batches.append(empty_microbatch(built.microbatch(0)))
        first = int(positions[0])
        return GlobalBatch(batches, built.total_weight, built.token_hash, first, count, count * self.sequence)

    def _taught(self, built: BuiltBatch, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        """The batch with the teacher's predictions, where there is a teacher."""
        if (teacher := self.teacher) is None:
            return built

        def microbatch(number: int) -> Batch:
            mine = slice(number * micro_batch, (number + 1) * micro_batch)
            ids, logs = teacher.read(SampleRefs(*(each[mine] for each in refs[:4])))
            known = {"teacher_ids": torch.from_numpy(ids), "teacher_logs": torch.from_numpy(logs)}
            return replace(built.microbatch(number), **known)

        return built._replace(microbatch=microbatch)

    def rows(self, source: int, rows: Int64[np.ndarray, " n"]) -> Batch:
        """Rows of a source's plan, in the order given, as one microbatch of the first epoch."""
        none = np.zeros_like(rows)
        return self._builder.build(SampleRefs(rows, np.full_like(rows, source), rows, none), len(rows)).microbatch(0)

    def refs(self, positions: Int64[np.ndarray, " n"]) -> SampleRefs:
        """Source, row and epoch of each position."""
        found = SampleRefs(positions, *self.sampler.locate(positions))
        if len(self._reach.sizes) == 1:
            return found
        levels = np.searchsorted(np.array(self._reach.firsts), positions * self.sequence, side="right") - 1
        reach = np.array(self._reach.sizes)[levels]
        return found if (reach == self.sequence).all() else found._replace(reach=reach)

    def segments(self, positions: Int64[np.ndarray, " n"]) -> Segments:
        """Spans of the streams that the rows at `positions` are made from."""
        return self._builder.segments(self.refs(positions))

    def documents(self, sample: int) -> list[DocumentRef]:
        """The documents whose tokens are in the row of global position `sample`, in the order of the row."""
        refs = self.refs(np.array([sample], np.int64))
        source = int(refs.sources[0])
        name = self.sources[source]
        shards = self.streams[source].shards
        found = []
        _, begins, sizes = self._builder.segments(refs)
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
            for number, document, start, length in self._shards.documents(source, begin, size):
                shard = shards[number]
                row = shard.document(document)
                found.append(DocumentRef(name, shard.name, document, str(row["id"]), str(row["origin"]), start, length))
        return found

    def row_tokens(self, sample: int) -> Int32[np.ndarray, " tokens"]:
        """Token ids of the text in the row of global position `sample`: those of `documents`, one after the other."""
        refs = self.refs(np.array([sample], np.int64))
        bounds, begins, sizes = self._builder.segments(refs)
        return self._shards.gather(np.repeat(refs.sources, np.diff(bounds)), begins, sizes)

    def epochs(self, tokens: int) -> dict[str, float]:
        """How often each source is read in the first `tokens` tokens of training, skipped ranges left aside."""
        drawn = self.sampler.draws(tokens // self.sequence)
        return {name: int(count) / plan.rows for name, count, plan in zip(self.sources, drawn, self.plans, strict=True)}

    def epoch_tokens(self, epochs: float) -> int:
        """Length in tokens of `epochs` passes over all sources in use: whole rows, rounded up."""
        return math.ceil(round(epochs * sum(plan.rows for plan in self.plans), 6)) * self.sequence

    @property
    def fingerprint(self) -> str:
        """Hash of all that the sequence of samples depends on: data, mixture, order, packing, mask, objective, seed."""
        objective = self.config.objective
        settings = [] if isinstance(objective, Causal) else [objective.model_dump_json()]
        parts = [
            f"{self.seed} {self.sequence} {self.config.order} {self.config.document_mask}",
            *settings,
            *(f"{name} {plan.digest}" for name, plan in zip(self.sources, self.plans, strict=True)),
            *(f"{stage.first} {stage.counts.tolist()}" for stage in self.stages),
            *(f"first {source} {xxhash.xxh3_64_hexdigest(rows.data)}" for source, rows in self._first_epochs.items()),
            *([f"reach {self._reach.firsts} {self._reach.sizes}"] if len(self._reach.sizes) > 1 else []),
        ]
        return xxhash.xxh3_64_hexdigest("\n".join(parts).encode())

    def describe(self) -> str:
        """The data as a tree of lines: mixture, sources, shards, with fingerprints."""
        config = self.config
        mask = "attention inside documents" if config.document_mask else "attention over the row"
        rows = f"rows of {self.sequence} tokens" + (
            "" if isinstance(config.objective, Causal) else f" ({config.objective.kind})"
        )
        lines = [f"mix [{self.fingerprint}] {config.order}, seed {self.seed}, {rows}, {mask}"]
        for stage in self.stages[1:]:
            shares = ", ".join(f"{n} {w:.4g}" for n, w in zip(self.sources, stage.weights, strict=True) if w > 0)
            lines.append(f"|-- from token {stage.first * self.sequence:,}: {shares}")
        if (curriculum := config.curriculum).kind != "none":
            lines.append(f"|-- easy rows first (by {curriculum.by}), all from token {curriculum.over_tokens:,} on")
        if len(self._reach.sizes) > 1:
            lines.append(f"|-- attention reaches {self._reach.describe()}")
        for number, (name, plan) in enumerate(zip(self.sources, self.plans, strict=True)):
            last = number == len(self.sources) - 1
            stream = self.streams[number]
            lines.append(
                f"{'`--' if last else '|--'} {name} [{plan.digest[:16]}] weight {self.stages[0].weights[number]:.4g},"
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
