"""What of the vocabulary stays: estimates from the noted sample beside exact counts over the text."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.content import LanguageConfig
from hornbook.text.config.rules import GopherQualityConfig
from hornbook.text.config.scores import VocabularyConfig
from hornbook.text.config.text import DropEmptyConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.scores.curve import curve, read_signals
from hornbook.text.refinery.scores.vocabulary import Coverage, SampledWords, Vocabulary
from tests.text.refinery.running import judge, prepare


def documents(count: int, seed: int, vocabulary: int = 3000) -> list[list[str]]:
    """Words of documents, some words a thousand times more often than others; other seeds have other words."""
    draw = random.Random(seed)
    words = [f"w{seed}x{number}" for number in range(vocabulary)]
    weights = list(accumulate(1 / rank for rank in range(1, vocabulary + 1)))
    return [draw.choices(words, cum_weights=weights, k=draw.randrange(5, 150)) for _ in range(count)]


def enough_words(least: int) -> GopherQualityConfig:
    """One rule alone."""
    others = set(GopherQualityConfig.model_fields) - {"kind", "name", "words", "stop_words"}
    return GopherQualityConfig.model_validate(dict.fromkeys(others) | {"min_words": least})


def exact(texts: Sequence[Sequence[str]], kept: np.ndarray) -> tuple[float, float]:
    """(share of different words, share of the text) whose words stand in a document that is kept."""
    counts = Counter(word for text in texts for word in text)
    stays = {word for text, keep in zip(texts, kept, strict=True) if keep for word in text}
    return len(stays) / len(counts), sum(counts[word] for word in stays) / counts.total()


def sampled(texts: Sequence[Sequence[str]], one_in: int, most: int = 1 << 24) -> SampledWords:
    measurer, found = Vocabulary(VocabularyConfig(words="whitespace", one_in=one_in)), SampledWords(one_in, most)
    for first in range(0, len(texts), 100):  # batches and tasks are joined
        columns = measurer.measure([Document(" ".join(text), "id", "s") for text in texts[first : first + 100]])
        lists: Any = columns["word_sample"]
        found.add(columns["words"], lists)
    return found


def test_all_words_are_counted_exactly() -> None:
    texts = documents(300, 1)
    for share in (0, 0.05, 0.5, 1):
        kept = np.random.default_rng(2).random(300) < share
        found = sampled(texts, 1).coverage(kept)
        wanted = exact(texts, kept)
        assert (found.vocabulary, found.running) == pytest.approx(wanted, abs=1e-12)
        assert (found.vocabulary_error, found.running_error) == (0, 0)


@pytest.mark.parametrize("thinned", [False, True])
def test_the_interval_holds_the_exact_share_as_often_as_it_says(thinned: bool) -> None:
    inside, errors = np.zeros(2), []
    for seed in range(100):
        texts = documents(120, seed)
        kept = np.random.default_rng(seed).random(120) < (seed % 10 + 1) / 11
        one_in, most = (2, sum(map(len, texts)) // 8) if thinned else (8, 1 << 24)
        found = sampled(texts, one_in, most).coverage(kept)
        near = np.array([found.vocabulary, found.running]) - exact(texts, kept)
        inside += np.abs(near) <= (found.vocabulary_error, found.running_error)
        errors.append(near)
    assert (inside >= 89).all()  # of 95 in the mean; fewer than 89 of 100 come once in a hundred times
    spread = np.std(errors, axis=0)
    assert (np.abs(np.mean(errors, axis=0)) < 3 * spread / 10).all()


def test_a_larger_sample_is_more_exact() -> None:
    texts, kept = documents(500, 3), np.arange(500) % 2 == 0
    errors = [sampled(texts, one_in).coverage(kept).vocabulary_error for one_in in (2, 8, 32)]
    assert errors == sorted(errors)
    assert errors[2] > 2 * errors[0]


def test_the_same_words_are_in_the_sample_of_every_document() -> None:
    texts = documents(50, 4)
    measurer = Vocabulary(VocabularyConfig(words="cjk", one_in=4))
    lists: Any = measurer.measure([Document(" ".join(text), "id", "s") for text in texts])["word_sample"]
    alone: Any = [measurer.measure([Document(" ".join(text), "id", "s")])["word_sample"] for text in texts]
    assert lists.to_pylist() == [each.to_pylist()[0] for each in alone]
    assert len({number for row in lists.to_pylist() for number in row}) == pytest.approx(
        len({word for text in texts for word in text}) / 4, rel=0.15
    )


def test_capitals_and_marks_do_not_make_words() -> None:
    texts = ["Model, model: MODEL", "(model)", "", "?"]
    measurer = Vocabulary(VocabularyConfig(words="whitespace", one_in=1))
    columns = measurer.measure([Document(text, "id", "s") for text in texts])
    lists: Any = columns["word_sample"]
    assert columns["words"].tolist() == [3, 1, 0, 0]
    assert [len(set(row)) for row in lists.to_pylist()] == [1, 1, 0, 0]


def test_it_takes_under_two_percent_of_the_text() -> None:
    """As it is stored, of short documents of many different words."""
    texts = documents(2000, 5, 50_000)
    lists = Vocabulary(VocabularyConfig()).measure([Document(" ".join(text), "id", "s") for text in texts])[
        "word_sample"
    ]
    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"v.word_sample": lists}), file, compression="zstd", write_statistics=False)
    assert file.tell() < 0.02 * sum(len(" ".join(text)) for text in texts)


def test_as_a_step_it_keeps_all_and_the_curve_says_what_is_lost(tmp_path: Path) -> None:
    texts = documents(200, 6)
    steps = [VocabularyConfig(one_in=1), DropEmptyConfig(), enough_words(20)]
    kept, signals = prepare(tmp_path, steps, [*(" ".join(text) for text in texts), ""])
    assert len(kept) < 200
    assert signals["reason"].to_pylist().count("vocabulary") == 0
    step, columns = read_signals(tmp_path / "data", steps, "gopher_quality")
    for point in curve(step, columns, "min_words", [0, 20, 60, 1000]):
        stays = np.array([len(text) >= point.value for text in texts])
        assert point.words is not None
        assert (point.words.vocabulary, point.words.running) == pytest.approx(exact(texts, stays), abs=1e-12)
    assert judge([VocabularyConfig()], ["a", ""], ["b"])[0] == ["kept"] * 3


def test_without_the_step_the_curve_has_none(tmp_path: Path) -> None:
    prepare(tmp_path, [enough_words(2)], ["a b c", "the text and what it is"])
    step, signals = read_signals(tmp_path / "data", [enough_words(2)], "gopher_quality")
    assert curve(step, signals, "min_words", [1])[0].words is None


def test_none_and_all_are_known_for_sure() -> None:
    texts = documents(40, 7)
    assert sampled(texts, 16).coverage(np.zeros(40, bool)) == Coverage(0, 0, 0, 0)
    assert sampled(texts, 16).coverage(np.ones(40, bool)) == Coverage(1, 0, 1, 0)
    assert sampled([[], []], 4).coverage(np.array([True, False])).running == 1


@pytest.mark.parametrize(
    ("step", "key"), [(VocabularyConfig(), "vocabulary.one_in"), (LanguageConfig(detector="script"), "language.sample")]
)
def test_what_was_measured_is_no_threshold(tmp_path: Path, step: Any, key: str) -> None:
    prepare(tmp_path, [step], ["one text", "another text"])
    label, _, name = key.partition(".")
    found, signals = read_signals(tmp_path / "data", [step], label)
    with pytest.raises(UsageError, match=f"{label}.{name} is part of what was measured"):
        curve(found, signals, name, [10])
