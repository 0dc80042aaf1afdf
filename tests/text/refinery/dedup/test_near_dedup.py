import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import ValidationError

from hornbook.errors import UsageError
from hornbook.text.config.duplicates import NearDedupConfig
from hornbook.text.refinery.dedup.near_dedup import NearDedup
from hornbook.text.refinery.step import CorpusView
from tests.text.refinery.duplicates import corpus_of, documents_of
from tests.text.refinery.running import least_seconds

VOCABULARY = np.array([f"w{number}" for number in range(5000)])
BANDS = [(0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.0)]


def planted_pairs(count: int, seed: int = 0) -> tuple[list[str], list[str], np.ndarray]:
    """Random documents of 120 words, each with 0 to 7 of them replaced, and how similar their shingles are."""
    rng = np.random.default_rng(seed)
    words = VOCABULARY[rng.integers(0, len(VOCABULARY), (count, 120))]
    replaced = rng.random(words.shape).argsort(axis=1) < rng.integers(0, 8, (count, 1))
    edited = np.where(replaced, np.char.add(words, "x"), words)
    shared = 116 - sliding_window_view(replaced, 5, axis=1).any(axis=2).sum(axis=1)
    return [" ".join(row) for row in words], [" ".join(row) for row in edited], shared / (2 * 116 - shared)


def test_pairs_meet_as_often_as_theory_says() -> None:
    """1 - (1 - s^8)^14 in each band of similarity, within 0.02; each pair alone, so that clusters play no part."""
    originals, edited, similar = planted_pairs(25_000)
    step = NearDedup(NearDedupConfig())
    first, second = step.sketch(documents_of(originals), 0), step.sketch(documents_of(edited), 0)
    met = (first == second).any(axis=1)
    theory = 1 - (1 - similar**8) ** 14
    for low, high in BANDS:
        band = (similar >= low) & (similar < high)
        assert band.sum() > 2000
        assert abs(met[band].mean() - theory[band].mean()) < 0.02
    assert met[similar == 1].all()
    assert not (first[1:] == second[:-1]).any()


def slow_clusters(keys: np.ndarray, alive: np.ndarray) -> list[int]:
    """The first document that hangs together with each, by repeated passes over a table of keys."""
    first, least = list(range(len(keys))), {}
    changed = True
    while changed:
        changed = False
        for row in np.flatnonzero(alive & (keys[:, 0] != 0)).tolist():
            for key in keys[row].tolist():
                least[key] = min(least.get(key, row), first[row])
            best = min(least[key] for key in keys[row].tolist())
            changed |= best < first[row]
            first[row] = best
    return first


def made_texts() -> list[str]:
    """Families of edited documents, short ones, empty ones, and copies, in random order."""
    rng = np.random.default_rng(5)
    originals, edited, _ = planted_pairs(120, seed=1)
    chains = originals[:40]
    for _ in range(4):
        chains = [text.replace(str(rng.choice(text.split())), "other", 1) for text in chains]
        edited += chains
    texts = [*originals, *edited, "", " \n", "one two", "one two", "one two three four five", *originals[:30]]
    return [texts[place] for place in rng.permutation(len(texts))]


@pytest.mark.parametrize("keep", ["first", "longest"])
def test_one_of_each_cluster_stays(keep: str, tmp_path: Path) -> None:
    texts = made_texts()
    step = NearDedup(NearDedupConfig(keep=keep))
    alive = np.random.default_rng(2).random(len(texts)) < 0.9
    corpus = corpus_of(step, texts, tmp_path, tasks=3, alive=alive)
    clusters = slow_clusters(np.concatenate(corpus.sketches), alive)
    assert step.clusters(corpus).tolist() == clusters
    members = [[row for row, first in enumerate(clusters) if first == one] for one in range(len(texts))]
    assert max(map(len, members)) > 4
    sizes = [len(text.encode()) for text in texts]
    kept = {min(rows, key=lambda row: (-sizes[row] if keep == "longest" else 0, row)) for rows in members if rows}
    assert np.flatnonzero(step.decide_all(corpus) == 0).tolist() == sorted(kept)


@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "float64", "bool"])
def test_the_best_of_each_cluster_by_a_column_stays(dtype: str, lowest: bool, tmp_path: Path) -> None:
    texts, rng = made_texts(), np.random.default_rng(3)
    step = NearDedup(NearDedupConfig(keep="score.value", lowest=lowest))
    values = rng.integers(0, 3, len(texts)).astype(dtype)
    if dtype == "float64":
        values[rng.random(len(texts)) < 0.3] = np.nan
    corpus = corpus_of(step, texts, tmp_path)
    corpus = replace(corpus, columns={"score.value": values})
    worth = [-np.inf if value != value else -float(value) if lowest else float(value) for value in values.tolist()]  # noqa: PLR0124
    clusters = step.clusters(corpus).tolist()
    best = {first: max((r for r, c in enumerate(clusters) if c == first), key=worth.__getitem__) for first in clusters}
    assert np.flatnonzero(step.decide_all(corpus) == 0).tolist() == sorted(best.values())


def test_a_column_to_keep_by_is_a_number_that_is_measured() -> None:
    step = NearDedup(NearDedupConfig(keep="classifier.score"))
    step.check({"classifier.score": "float64"})
    for columns in ({"classifier.other": "float64"}, {"classifier.score": "str"}):
        with pytest.raises(UsageError, match=r"keep = 'classifier.score' is neither `longest` nor"):
            step.check(columns)
    with pytest.raises(ValidationError, match="lowest goes with a column"):
        NearDedupConfig(lowest=True)


def test_tasks_batches_and_memory_change_nothing(tmp_path: Path) -> None:
    texts, found = made_texts(), []
    for number, (tasks, batch, budget) in enumerate([(1, 1000, 2**30), (9, 4, 2**30), (40, 1, 6000), (2, 50, 20_000)]):
        step = NearDedup(NearDedupConfig())
        step.budget = budget
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(step.decide_all(corpus_of(step, texts, folder, tasks=tasks, batch=batch)))
    assert found[0].sum() > 100
    assert all(np.array_equal(one, other) for one, other in pairwise(found))


def test_long_documents_are_compared_in_tiles() -> None:
    """Least values over all tiles are those of the whole: the same words in another order of halves share shingles."""
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in rng.integers(0, 10**9, 9000)]
    step = NearDedup(NearDedupConfig(shingle=1))
    texts = [" ".join(words), " ".join(words[4500:] + words[:4500]), " ".join(words[:4500])]
    keys = step.sketch(documents_of(texts), 0)
    assert np.array_equal(keys[0], keys[1])
    assert not np.array_equal(keys[0], keys[2])


def test_chinese_is_compared_by_its_characters() -> None:
    """There are no blanks, yet one changed character leaves most shingles as they were."""
    rng = np.random.default_rng(0)
    text = "".join(map(chr, rng.integers(0x4E00, 0x9FA5, 400)))
    keys = NearDedup(NearDedupConfig(words="cjk")).sketch(documents_of([text, text[:200] + "新" + text[201:]]), 0)
    assert (keys[0] == keys[1]).sum() >= 3
    keys = NearDedup(NearDedupConfig(words="whitespace")).sketch(
        documents_of([text, text[:200] + "新" + text[201:]]), 0
    )
    assert not (keys[0] == keys[1]).any()


@pytest.mark.parametrize("pattern", ["a", "a ", "\u0301", " ", "\U0001f600", "字"], ids=ascii)
def test_time_is_linear(pattern: str) -> None:
    step = NearDedup(NearDedupConfig())

    def seconds(size: int) -> float:
        documents = documents_of([pattern * (size // len(pattern.encode()))])
        return least_seconds(lambda: step.sketch(documents, 0))

    seconds(1000)
    small, large = seconds(500_000), seconds(4_000_000)
    assert large < 40 * max(small, 0.001)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Sketches of 13 MB and records of 27 MB with a budget of 8 MB, beside 24 bytes for each row."""
    rows, bands = 120_000, 14
    rng = np.random.default_rng(0)
    keys = rng.integers(1, 2**63, (rows, bands), dtype=np.uint64)
    keys[rows // 2 :, 3] = keys[: rows // 2, 7]
    np.save(tmp_path / "keys.npy", keys)
    step = NearDedup(NearDedupConfig())
    alive = np.ones(rows, bool)
    del keys

    def clusters(budget: int) -> tuple[np.ndarray, int]:
        step.budget = budget
        corpus = CorpusView(
            alive, {}, [np.load(tmp_path / "keys.npy", mmap_mode="r")], [0], tmp_path, lambda _: iter(())
        )
        tracemalloc.start()
        found = step.clusters(corpus)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, peak

    clusters(2**30)
    bounded, peak = clusters(8 * 2**20)
    whole, most = clusters(2**30)
    assert np.array_equal(bounded, whole)
    assert (bounded != np.arange(rows)).sum() == rows // 2
    assert peak < 8 * 2**20 + 24 * rows < most
