"""The same work as in `benchmarks.peers.duplicates`, done by this package's steps as prepare runs them."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks.peers.duplicates import BANDS, LINE_BYTES, NGRAM, ROWS, SHINGLE, main
from hornbook.text.config.duplicates import DecontaminateConfig, LineDedupConfig, NearDedupConfig, SpanDedupConfig
from hornbook.text.config.text import ExactDedupConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.dedup.decontaminate import Decontaminate
from hornbook.text.refinery.dedup.lines import LineDedup
from hornbook.text.refinery.dedup.near_dedup import NearDedup
from hornbook.text.refinery.dedup.spans import SpanDedup
from hornbook.text.refinery.step import CorpusView, Cut, SketchingStep
from hornbook.text.refinery.steps.basics import ExactDedup

BATCH_BYTES, BATCH_ROWS = 4 * 2**20, 1024
"""As prepare's."""


def _batches(texts: list[str]) -> Iterator[tuple[int, list[Document]]]:
    """(first row, documents)."""
    batch: list[Document] = []
    size = 0
    for row, text in enumerate(texts):
        batch.append(Document(text, str(row), "texts"))
        size += len(text)
        if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS or row == len(texts) - 1:
            yield row + 1 - len(batch), batch
            batch, size = [], 0


def _with_corpus(step: SketchingStep, texts: list[str], judge: Callable[[CorpusView], Any]) -> Any:
    """Sketches go through a file, as in prepare."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sketches.npy"
        np.save(path, np.concatenate([step.sketch(batch, first) for first, batch in _batches(texts)]))
        columns = {"bytes": np.array([len(text) for text in texts])}
        sketches = [np.load(path, mmap_mode="r")]
        return judge(CorpusView(np.ones(len(texts), bool), columns, sketches, [0], Path(folder), lambda _: iter(())))


def _near(texts: list[str], _: list[str]) -> list[int]:
    step = NearDedup(NearDedupConfig(bands=BANDS, rows=ROWS, shingle=SHINGLE, words="whitespace"))
    return _with_corpus(step, texts, lambda corpus: step.clusters(corpus).tolist())


def _exact(texts: list[str], _: list[str]) -> int:
    hashes = np.frombuffer(b"".join(xxhash.xxh3_128_digest(text.encode()) for text in texts), np.uint64).reshape(-1, 2)
    alive = np.ones(len(texts), bool)
    corpus = CorpusView(alive, {}, [], [0], Path(), lambda _: iter([hashes]))
    return int(ExactDedup(ExactDedupConfig()).decide_all(corpus).sum())


def _removed(step: Cut) -> Callable[[CorpusView], int]:
    def removed(corpus: CorpusView) -> int:
        _, start, end = step.cuts(corpus)
        return int((end - start).sum())

    return removed


def _lines(texts: list[str], _: list[str]) -> int:
    step = LineDedup(LineDedupConfig(min_bytes=LINE_BYTES))
    return _with_corpus(step, texts, _removed(step))


def _spans(texts: list[str], _: list[str]) -> int:
    step = SpanDedup(SpanDedupConfig(words="whitespace"))
    return _with_corpus(step, texts, _removed(step))


def _decontaminate(texts: list[str], items: list[str]) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        path.write_text("".join(json.dumps({"text": item}) + "\n" for item in items))
        step = Decontaminate(DecontaminateConfig(paths=[str(path)], ngram=NGRAM))
        reasons = []
        for _, batch in _batches(texts):
            columns = step.measurers[0].measure(batch)
            reasons.append(step.decide({f"{step.name}.{name}": column for name, column in columns.items()}))
        return np.concatenate(reasons).tolist()


WORK = {
    "near: ours": _near,
    "exact: ours": _exact,
    "lines: ours": _lines,
    "spans: ours": _spans,
    "decontamination: ours": _decontaminate,
}

if __name__ == "__main__":
    main(WORK)
