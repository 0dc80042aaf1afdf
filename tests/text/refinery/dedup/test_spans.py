from pathlib import Path

import numpy as np
import pytest

from hornbook.text.config.duplicates import SpanDedupConfig
from hornbook.text.refinery.dedup.spans import SpanDedup
from tests.text.refinery.duplicates import applied, corpus_of


def places_of(text: str) -> list[tuple[int, int]]:
    """Bytes of the words, by blanks."""
    places, start = [], 0
    for word in text.encode().split(b" "):
        places.append((start, start + len(word)))
        start += len(word) + 1
    return [place for place in places if place[0] < place[1]]


def slow_cuts(texts: list[str], window: int) -> list[str]:
    """The rule in plain words: mark the bytes of each window that occurred before without overlapping that one."""
    seen: dict[bytes, tuple[int, int]] = {}
    left = []
    for row, text in enumerate(texts):
        data, places = text.encode(), places_of(text)
        marked = bytearray(len(data))
        for first in range(len(places) - window + 1):
            start, end = places[first][0], places[first + window - 1][1]
            key = b" ".join(data[slice(*place)] for place in places[first : first + window])
            earlier = seen.setdefault(key, (row, end))
            if earlier[0] != row or start >= earlier[1]:
                marked[start:end] = b"x" * (end - start)
        left.append(bytes(byte for byte, mark in zip(data, marked, strict=True) if not mark).decode())
    return left


def made_texts(seed: int) -> list[str]:
    """Documents with passages of a common stock, repeated words, and other scripts."""
    rng = np.random.default_rng(seed)
    stock = [[f"{'слово' if i % 3 else 'w'}{i}-{j}" for j in range(int(rng.integers(5, 40)))] for i in range(30)]
    texts = []
    for _ in range(150):
        words: list[str] = []
        for _ in range(int(rng.integers(0, 6))):
            words += stock[int(rng.integers(len(stock)))]
            words += [f"own{number}" for number in rng.integers(0, 10**6, int(rng.integers(0, 10)))]
            words += ["na"] * int(rng.integers(0, 4)) * int(rng.integers(0, 12))
        texts.append(" ".join(words))
    return texts


@pytest.mark.parametrize("window", [5, 12, 30])
def test_what_is_left_equals_the_slow_reference(window: int, tmp_path: Path) -> None:
    texts = made_texts(window)
    step = SpanDedup(SpanDedupConfig(window=window, words="whitespace"))
    left = applied(texts, step.cuts(corpus_of(step, texts, tmp_path)))
    assert left == slow_cuts(texts, window)
    assert sum(map(len, left)) < 0.9 * sum(map(len, texts))


def test_tasks_batches_and_memory_change_nothing(tmp_path: Path) -> None:
    texts, found = made_texts(3), []
    for number, (tasks, batch, budget) in enumerate([(1, 1000, 2**30), (7, 3, 2**30), (150, 1, 20_000)]):
        step = SpanDedup(SpanDedupConfig(window=10))
        step.budget = budget
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(np.stack(step.cuts(corpus_of(step, texts, folder, tasks=tasks, batch=batch))))
    assert found[0].shape[1] > 50
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_a_repeated_word_leaves_one_window(tmp_path: Path) -> None:
    step = SpanDedup(SpanDedupConfig(window=50))
    text = "na " * 100_000
    assert applied([text], step.cuts(corpus_of(step, [text], tmp_path)))[0].split() == ["na"] * 50


def test_a_passage_is_found_whatever_stands_between_its_words(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(60)]
    texts = ["before " + " ".join(words), "other " + "\n".join(words) + " after"]
    step = SpanDedup(SpanDedupConfig())
    assert applied(texts, step.cuts(corpus_of(step, texts, tmp_path)))[1].split() == ["other", "after"]
