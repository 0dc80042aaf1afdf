"""Phase 2 of prepare: which documents are dropped and why, what is cut from others; from columns and sketches alone.

Memory grows by 3 bytes a document (its reason, whether it is alive), by the columns that a global step needs while it
judges, and by 24 bytes for each span that is cut; all else is one task at a time.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hornbook.files.artifact import finish, finished
from hornbook.files.durable import writing
from hornbook.text.refinery.pipeline.plan import MeasureTask, read_columns
from hornbook.text.refinery.step import Columns, CorpusView, Cut, Decision, GlobalDecision, SketchingStep, Steps

KEPT, NOTHING_LEFT = "kept", "nothing left"
_NAMES = "verdicts.json"
EXAMPLES = 20
"""Documents shown for each reason, and for `kept`."""


@dataclass(slots=True)
class Verdict:
    """The outcome of the documents of one task."""

    reasons: np.ndarray
    """uint16 [rows]: index into the names of reasons; 0 is kept."""
    cuts: np.ndarray
    """int64 [n, 3]: row, start and end (bytes of the edited text) of what is cut; sorted, without overlaps."""
    samples: dict[int, list[str]] = field(default_factory=dict)
    """Row -> the reasons for which it is an example."""


def decide(tasks: Sequence[MeasureTask], steps: Steps, scratch: Path) -> tuple[list[str], list[Verdict]]:
    """(names of reasons, a verdict per task). The first step that drops a document gives the reason."""
    judge = _Judge(tasks, steps, scratch)
    for is_global, group in groupby(steps.decisions, key=lambda step: isinstance(step, GlobalDecision)):
        judge_all = judge.globally if is_global else judge.locally
        judge_all(list(group))
    cuts = judge.cut(steps.cuts)
    parts = zip(np.split(judge.reasons, judge.firsts[1:]), cuts, judge.examples(), strict=True)
    return judge.names, [Verdict(*part) for part in parts]


class _Judge:
    """Collects the reasons of all rows, uint16 in the order (task, row)."""

    def __init__(self, tasks: Sequence[MeasureTask], steps: Steps, scratch: Path) -> None:
        self.tasks, self._scratch = tasks, scratch
        self.names = [KEPT, NOTHING_LEFT]
        numbers = (self._number(edit.reasons[0]) if edit.reasons else 0 for edit in steps.edits)
        edits = np.array([0, *numbers], np.uint16)
        parts = [edits[read_columns(task, ["edited_out"])["edited_out"]] for task in tasks]
        self._sizes = [len(part) for part in parts]
        self.firsts = [0, *np.cumsum(self._sizes).tolist()][:-1]
        self.reasons = np.concatenate([np.zeros(0, np.uint16), *parts])

    def _number(self, reason: str) -> int:
        if reason not in self.names:
            self.names.append(reason)
        return self.names.index(reason)

    def _drop(self, rows: slice, step: Decision | GlobalDecision, found: np.ndarray) -> None:
        numbers = np.array([0, *(self._number(reason) for reason in step.reasons)], np.uint16)
        reasons = self.reasons[rows]
        reasons[...] = np.where(reasons == 0, numbers[found], reasons)

    def _parts(self) -> Iterator[tuple[MeasureTask, int, int]]:
        """Each task, its first row and the row after its last."""
        for task, first, size in zip(self.tasks, self.firsts, self._sizes, strict=True):
            yield task, first, first + size

    def locally(self, steps: Sequence[Any]) -> None:
        """Decisions that look at each document's columns alone, in their order; each task's columns are read once."""
        for task, first, end in self._parts():
            columns = read_columns(task, [name for step in steps for name in step.needs])
            for step in steps:
                self._drop(slice(first, end), step, step.decide(columns))

    def globally(self, steps: Sequence[Any]) -> None:
        """Decisions over all documents, one after the other."""
        for step in steps:
            with self._corpus(step) as corpus:
                found = step.decide_all(corpus)
            for _, first, end in self._parts():
                self._drop(slice(first, end), step, found[first:end])

    def cut(self, steps: Sequence[Cut]) -> list[np.ndarray]:
        """The spans that all cuts together remove, task by task."""
        found = []
        for step in steps:
            with self._corpus(step) as corpus:
                found.append(step.cuts(corpus))
        return [_merge([_within(spans, first, end) for spans in found]) for _, first, end in self._parts()]

    @contextmanager
    def _corpus(self, step: SketchingStep) -> Iterator[CorpusView]:
        """What the step sees, with an empty scratch folder that is deleted afterwards."""
        sketched = self.tasks if step.sketches else []
        sketches = [np.load(task.sketch(step.name), mmap_mode="r") for task in sketched]
        columns = self._columns(step.needs)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        try:
            yield CorpusView(self.reasons == 0, columns, sketches, self.firsts, self._scratch, self._stream)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _columns(self, names: Sequence[str]) -> Columns:
        """Columns of all rows, filled in task by task, so that they are held once."""
        found: dict[str, np.ndarray] = {}
        for task, first, end in self._parts() if names else ():
            for name, part in read_columns(task, names).items():
                if name not in found:
                    found[name] = np.empty((len(self.reasons), *part.shape[1:]), part.dtype)
                found[name][first:end] = part
        return found

    def _stream(self, name: str) -> Iterator[np.ndarray]:
        """A column, task by task."""
        for task in self.tasks:
            yield read_columns(task, [name])[name]

    def examples(self) -> list[dict[int, list[str]]]:
        """Rows to show for each reason, task by task: those with the least hashes, keyed by the reason."""
        keys = [np.uint64(xxhash.xxh3_64_intdigest(name.encode())) for name in self.names]
        least: list[list[tuple[int, int]]] = [[] for _ in keys]
        for task, first, end in self._parts():
            hashes, reasons = read_columns(task, ["hash"])["hash"][:, 0], self.reasons[first:end]
            for number in np.unique(reasons).tolist():
                found = _least(hashes ^ keys[number], np.flatnonzero(reasons == number), first)
                least[number] = nsmallest(EXAMPLES, [*least[number], *found])
        chosen: dict[int, list[str]] = {}
        for name, rows in zip(self.names, least, strict=True):
            for _, row in rows:
                chosen.setdefault(row, []).append(name)
        return [{row - a: chosen[row] for row in sorted(chosen) if a <= row < b} for _, a, b in self._parts()]


def _least(keys: np.ndarray, rows: np.ndarray, first: int) -> list[tuple[int, int]]:
    """(key, row in the whole corpus) of the rows with the least keys; of equal keys the first rows."""
    if len(rows) > EXAMPLES:  # none above the last that is wanted: few are left to sort
        rows = rows[keys[rows] <= np.partition(keys[rows], EXAMPLES - 1)[EXAMPLES - 1]]
    rows = rows[np.argsort(keys[rows], kind="stable")][:EXAMPLES]
    return list(zip(keys[rows].tolist(), (rows + first).tolist(), strict=True))


def _within(spans: Sequence[np.ndarray], first: int, end: int) -> np.ndarray:
    """int64 [n, 3]: the (row, start, end) with rows from `first` to `end`, counted from `first`."""
    part = slice(*np.searchsorted(spans[0], (first, end)))
    rows, starts, ends = (each[part] for each in spans)
    return np.stack([rows - first, starts, ends], axis=1).astype(np.int64)


def _merge(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Spans [n, 3] of one task, sorted; those of a row that touch or overlap are joined."""
    spans = np.concatenate([np.zeros((0, 3), np.int64), *parts])
    spans = spans[np.lexsort((spans[:, 1], spans[:, 0]))]
    begins, ends = (spans[:, :1] << 32 | spans[:, 1:]).T  # of any row after those of the rows before
    reached = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.concatenate([[True], begins[1:] > reached[:-1]])[: len(spans)])
    last = np.append(first[1:], len(spans))[: len(first)] - 1
    return np.stack([spans[first, 0], spans[first, 1], reached[last] & 0xFFFFFFFF], axis=1)


def remove(data: bytes, spans: Sequence[Sequence[int]]) -> bytes:
    """UTF-8 text without the spans (start, end), which are sorted and do not overlap."""
    edges = [0, *(edge for span in spans for edge in span), len(data)]
    return b"".join(data[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def write_verdicts(work: Path, key: str, names: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """Write one file of arrays per task, then the names of reasons and the examples under a key."""
    (work / _NAMES).unlink(missing_ok=True)  # of an earlier plan: it must not vouch for files of this one
    for number, verdict in enumerate(verdicts):
        for name, array in (("reasons", verdict.reasons), ("cuts", verdict.cuts)):
            with writing(_path(work, number, name)) as file:
                np.save(file, array)
    samples = [sorted(verdict.samples.items()) for verdict in verdicts]
    finish(work / _NAMES, key, {"names": list(names), "samples": samples})


def read_verdicts(work: Path, key: str) -> tuple[list[str], list[Verdict]] | None:
    """The names and verdicts that `write_verdicts` wrote under this key, else None."""
    found = finished(work / _NAMES, key)
    if found is None:
        return None
    verdicts = [
        Verdict(np.load(_path(work, number, "reasons")), np.load(_path(work, number, "cuts")), dict(samples))
        for number, samples in enumerate(found["samples"])
    ]
    return found["names"], verdicts


def _path(work: Path, number: int, name: str) -> Path:
    return work / f"verdict-{number:05d}.{name}.npy"
