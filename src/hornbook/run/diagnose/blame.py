"""What the documents of a step did to it: their losses beside the usual ones, repeated n-grams, text that is none.

The losses are those of weights that have not learned from the step. What is usual is measured with the same weights, on
the samples behind the step, which they have not learned from either.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64

from hornbook.data.batch import Batch, DocumentRef
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.loader.loader import Loader, merge_ranges, positions_of
from hornbook.errors import HornbookError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.parallel.engine import Engine
from hornbook.run.diagnose.weights_at import weights_before
from hornbook.run.doctor.exposure import StepFinder, StepSamples, learned, loader_of, samples_of_step
from hornbook.run.ledger.ledger import read_past
from hornbook.text.tokenizer.tokenizer import Tokenizer

REFERENCE_ROWS = 64
"""Rows behind the step whose documents say what a usual loss is; as many as the step has, if these are fewer."""
LOSS_Z = 8.0
"""A loss this far above the usual one is a reason: as far as the guard lets a step's loss go."""
REPEATED = 32
"""Repetitions of an n-gram from which OLMo 2 drops a document (arXiv 2501.00656, section 3.1)."""
REPEATED_SHARE = 0.5
"""Share of the tokens in repeated n-grams from which they are a reason: of a document, a step may have read a part."""
NON_TEXT = 0.5
"""Share of characters that are no text from which they are a reason."""
NGRAM = 13
"""Longest n-gram, in tokens, whose repetition is looked for (OLMo 2, arXiv 2501.00656, section 3.1)."""
SEVERAL = 4
"""An n-gram that follows itself as often as this counts as repeated: fewer occur in good text."""
SYMBOLS = frozenset("+=<>$|`~^")
"""Characters of code that Unicode does not call punctuation."""
_IQR_TO_SIGMA = 0.7413
"""The distance of the quartiles times this is the standard deviation, for normal values."""


class Usual(NamedTuple):
    """Losses of documents that the weights have not learned from."""

    median: float
    scale: float
    """Robust standard deviation, from the quartiles: labels may have losses around two values."""
    documents: int

    def z(self, loss: float) -> float:
        """How many standard deviations a loss lies above the median."""
        return (loss - self.median) / self.scale


@dataclass(frozen=True)
class Blamed:
    """A piece of a document in a step."""

    sample: int
    ref: DocumentRef
    share: float
    """Of the tokens of the step."""
    repeated: float
    """Share of its tokens in repeated n-grams."""
    repeats: int
    """How often the most repeated n-gram follows itself."""
    non_text: float
    """Share of its characters that are no text."""
    copies: int
    """Pieces of the step with the same tokens, itself included."""
    passes: int
    """How often its row was read before."""
    loss: float | None = None
    """Mean nats of its targets; None without weights, or where none of its targets counts."""
    z: float | None = None
    excess: float | None = None
    """Nats by which it raises the loss of the step above what is usual; those of all pieces add up."""

    @property
    def reasons(self) -> list[str]:
        """What is wrong with it, as text."""
        found = []
        if self.z is not None and self.z > LOSS_Z:
            found.append(f"loss {self.loss:.2f}, z {self.z:.1f}")
        if self.repeats >= REPEATED or self.repeated > REPEATED_SHARE:
            found.append(f"{self.repeated:.0%} repeated, an n-gram {self.repeats} times in succession")
        if self.non_text > NON_TEXT:
            found.append(f"{self.non_text:.0%} of its characters are no text")
        if self.copies > 1:
            found.append(f"{self.copies} times in the step")
        return found

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        ref = {name: getattr(self.ref, name) for name in ("source", "id", "origin", "shard", "start")}
        own = {key: value for key, value in vars(self).items() if key not in ("ref", "sample")}
        return {"sample": self.sample, **ref, "tokens": self.ref.length, **own, "reasons": self.reasons}


@dataclass(frozen=True)
class Blame:
    """The documents of some samples, those with most blame first."""

    documents: list[Blamed]
    weights: str = ""
    """Where the weights are from; "" where there are none."""
    loss: float | None = None
    """Mean nats per target over all samples, under these weights."""
    usual: Usual | None = None
    problem: str = ""
    """Why there are no losses."""

    @property
    def marked(self) -> list[Blamed]:
        """The documents with a reason."""
        return [each for each in self.documents if each.reasons]


def blame_step(run: RunDir, step: int, attempt: int | None = None) -> tuple[Blame, StepSamples]:
    """Judge the documents of a step. Raises UsageError and IntegrityError as `samples_of_step`."""
    loader = loader_of(run)
    samples = samples_of_step(run, loader, step, attempt)
    return _judge(run, loader, samples.positions, step, int(samples.positions.max()) + 1), samples


def blame_skipped(run: RunDir) -> Blame:
    """Judge the documents that a run read and did not learn from: skipped ranges, and steps without an update.

    The weights are those of the newest checkpoint, which has not learned from them either.
    """
    loader, past = loader_of(run), read_past(run)
    finder = StepFinder(run, loader)
    ranges = [np.arange(first, end) for first, end in merge_ranges(past.skipped_ranges)]
    refused = [finder.samples(step).positions for step, each in finder.steps.items() if each.get("skipped")]
    if not ranges and not refused:
        return Blame([], problem="the run skipped nothing")
    positions = np.unique(np.concatenate([*ranges, *refused]))
    return _judge(run, loader, positions, max(finder.steps, default=0) + 1, learned(run).end)


def _judge(run: RunDir, loader: Loader, positions: Int64[np.ndarray, " n"], before: int, unread: int) -> Blame:
    """Judge the documents of samples by weights from before a step, for which samples from `unread` on are new."""
    pieces = list(look_at(loader, positions))
    try:
        engine, weights = weights_before(run, before)
    except HornbookError as error:
        return Blame(_sorted(pieces), problem=str(error))
    judged = _Losses(engine, loader)
    nats, counts = judged.of(positions)
    taken = merge_ranges([*read_past(run).skipped_ranges, (0, unread)])
    usual = judged.usual(positions_of(0, max(len(positions), REFERENCE_ROWS), taken))
    total = max(float(counts.sum()), 1.0)
    sums = zip(pieces, nats.tolist(), counts.tolist(), strict=True)
    found = [_with_loss(*each, usual, total) for each in sums]
    return Blame(_sorted(found), weights, float(nats.sum()) / total, usual)


def look_at(loader: Loader, positions: Int64[np.ndarray, " n"]) -> Iterator[Blamed]:
    """The pieces of documents in some samples, judged by their text alone."""
    index, tokenizer = loader.index, Tokenizer.load(loader.corpus.root / "tokenizer")
    rows = [(sample, _row_pieces(index, sample)) for sample in positions.tolist()]
    copies = Counter(tokens.tobytes() for _, pieces in rows for _, tokens in pieces)
    size = sum(ref.length for _, pieces in rows for ref, _ in pieces)
    epochs = index.refs(positions).epochs.tolist()
    for (sample, pieces), passes in zip(rows, epochs, strict=True):
        for ref, tokens in pieces:
            repeated, odd = repeats(tokens), non_text_share(tokenizer.decode(tokens.tolist()))
            more = {"copies": copies[tokens.tobytes()], "passes": passes}
            yield Blamed(sample, ref, ref.length / max(size, 1), repeated.share, repeated.longest, odd, **more)


def skips_of(run: RunDir, samples: StepSamples) -> list[str]:
    """What the ledger and the metrics say about skips of a step and of its samples."""
    found = ["its update was skipped"] if samples.record.get("skipped") else []
    for record in read_records(run.events):
        for first, end in record.get("windows", ()):
            if _meets(first, end, samples.positions):
                by = f"{record['kind']}, attempt {record['attempt']}, step {record['step']:,}"
                found.append(f"samples {first:,} to {end - 1:,} are never read again ({by})")
    return found


def _meets(first: int, end: int, positions: Int64[np.ndarray, " n"]) -> bool:
    return bool(((positions >= first) & (positions < end)).any())


def _row_pieces(index: GlobalIndex, sample: int) -> list[tuple[DocumentRef, np.ndarray]]:
    """The documents of a row, each with its token ids."""
    refs, tokens = index.documents(sample), index.row_tokens(sample)
    return list(zip(refs, np.split(tokens, np.cumsum([ref.length for ref in refs])[:-1]), strict=True))


def _with_loss(piece: Blamed, nats: float, count: float, usual: Usual | None, total: float) -> Blamed:
    if not count:
        return piece
    loss = nats / count
    if usual is None:
        return replace(piece, loss=loss)
    return replace(piece, loss=loss, z=usual.z(loss), excess=(nats - count * usual.median) / total)


def _sorted(pieces: Sequence[Blamed]) -> list[Blamed]:
    """Those with reasons first, then by what they add to the loss, by repetitions, and by what is no text."""
    return sorted(pieces, key=lambda each: (bool(each.reasons), each.excess or 0.0, each.repeated, each.non_text))[::-1]


class _Losses:
    """Losses of the pieces of documents in rows, under one model."""

    def __init__(self, engine: Engine, loader: Loader) -> None:
        self._engine, self._loader = engine, loader
        self._labels = loader.index.config.objective.predicts_labels

    def of(self, positions: Int64[np.ndarray, " n"]) -> tuple[Float64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
        """(nats, counted targets) of each piece, in the order of the positions and of the documents of each."""
        by_sample: dict[int, list[tuple[float, float]]] = {}
        for batch in self._loader.index.batch(positions, self._loader.micro_batch).batches:
            losses = self._engine.outputs(batch)[0] if self._labels else self._engine.evaluate(batch)
            weights = batch.weights.double().numpy()
            nats = losses.cpu().double().numpy() * weights
            for row, sample in enumerate(batch.samples.tolist()):
                by_sample[sample] = self._row(batch, row, sample, nats[row], weights[row])
        sums = [each for sample in positions.tolist() for each in by_sample[sample]]
        nats, counts = np.array(sums, np.float64).reshape(-1, 2).T
        return nats, counts

    def usual(self, positions: Int64[np.ndarray, " n"]) -> Usual | None:
        """The usual loss of a document, from these samples; None where fewer than two documents have one."""
        nats, counts = self.of(positions)
        losses = nats[counts > 0] / counts[counts > 0]
        if len(losses) < 2:
            return None
        median = float(np.median(losses))
        scale = _IQR_TO_SIGMA * float(np.subtract(*np.percentile(losses, (75, 25))))
        return Usual(median, max(scale, 1e-3 * abs(median), 1e-9), len(losses))

    def _row(
        self, batch: Batch, row: int, sample: int, nats: np.ndarray, weights: np.ndarray
    ) -> list[tuple[float, float]]:
        """(nats, counted targets) of the documents of one row."""
        index = self._loader.index
        sizes = [ref.length for ref in index.documents(sample)]
        if batch.source is None:
            return [(float(nats[a:b].sum()), float(weights[a:b].sum())) for a, b in _spans(sizes)]
        found = []  # of pairs: piece k of the target belongs to piece k of the text
        _, _, raw = index.segments(np.array([sample], np.int64))
        for (a, b), inside in zip(_spans(batch.document_lengths[row]), _grouped(sizes, raw.tolist()), strict=False):
            parts = np.array(inside) / sum(inside)
            found += [(float(nats[a:b].sum() * part), float(weights[a:b].sum() * part)) for part in parts]
        return found


def _spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """First index and end of parts of these sizes that follow each other."""
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def _grouped(sizes: Sequence[int], sums: Sequence[int]) -> Iterator[list[int]]:
    """The sizes in groups that add up to `sums`."""
    rest = iter(sizes)
    for total in sums:
        group: list[int] = []
        while sum(group) < total:
            group.append(next(rest))
        yield group


class Repeats(NamedTuple):
    """N-grams that follow themselves in a piece."""

    share: float
    """Of the tokens, those inside of repetitions of `SEVERAL` and more."""
    longest: int
    """How often the most repeated n-gram comes in succession; 1: none is repeated."""


def repeats(tokens: Int32[np.ndarray, " n"]) -> Repeats:
    """N-grams of 1 to `NGRAM` tokens that follow themselves.

    OLMo 2 traces spikes of the gradient norm to such documents, and removes those with 32 repetitions and more.
    """
    inside, longest = np.zeros(len(tokens), bool), 1
    for size in range(1, min(NGRAM, len(tokens) // 2) + 1):
        same = np.concatenate([[False], tokens[size:] == tokens[:-size], [False]])
        edges = np.flatnonzero(np.diff(same.astype(np.int8)))
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            times = (end - first) // size + 1
            longest = max(longest, times)
            if times >= SEVERAL:
                inside[first : end + size] = True
    return Repeats(float(inside.mean()) if len(tokens) else 0.0, longest)


def non_text_share(text: str) -> float:
    """Share of the characters that are neither letters, digits, whitespace, punctuation nor symbols of code."""
    odd = sum(not (each.isalnum() or each.isspace() or _is_punctuation(each)) for each in text)
    return odd / len(text) if text else 0.0


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" or character in SYMBOLS
