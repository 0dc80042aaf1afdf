"""What tests of duplicates share: a corpus of sketches in any split into tasks and batches, and texts with copies."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import CorpusView, SketchingStep


def documents_of(texts: Sequence[str]) -> list[Document]:
    return [Document(text, str(number), "test") for number, text in enumerate(texts)]


def corpus_of(
    step: SketchingStep,
    texts: Sequence[str],
    scratch: Path,
    *,
    tasks: int = 1,
    batch: int = 1000,
    alive: np.ndarray | None = None,
) -> CorpusView:
    """As prepare makes it: sketches of every task's batches, mapped from files."""
    documents = documents_of(texts)
    cuts = np.linspace(0, len(documents), tasks + 1).astype(int).tolist()
    sketches = []
    for task, (begin, end) in enumerate(pairwise(cuts)):
        starts = range(begin, end, batch) or [begin]
        parts = [step.sketch(documents[start : min(start + batch, end)], start - begin) for start in starts]
        path = scratch / f"{task}.npy"
        np.save(path, np.concatenate(parts))
        sketches.append(np.load(path, mmap_mode="r"))
    folder = scratch / "scratch"
    folder.mkdir(exist_ok=True)
    columns = {"bytes": np.array([len(text.encode()) for text in texts])}
    living = np.ones(len(texts), bool) if alive is None else alive
    return CorpusView(
        living, columns, sketches, cuts[:-1], folder, lambda name: iter(np.split(columns[name], cuts[1:-1]))
    )


def applied(texts: Sequence[str], cuts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> list[str]:
    """The texts without what is cut."""
    left = [text.encode() for text in texts]
    for row, start, end in reversed(list(zip(*(part.tolist() for part in cuts), strict=True))):
        left[row] = left[row][:start] + left[row][end:]
    return [data.decode() for data in left]
