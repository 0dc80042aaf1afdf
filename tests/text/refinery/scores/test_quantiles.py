"""Keeping documents by rank: the shares that are asked for, of each group, whatever the tasks."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from hornbook.errors import UsageError
from hornbook.text.config.content import LanguageConfig, MentionsConfig
from hornbook.text.config.scores import QuantilesConfig, VocabularyConfig
from hornbook.text.config.text import DropEmptyConfig
from hornbook.text.refinery.step import build
from tests.text.refinery.running import judge

LENGTHS = random.Random(1).sample(range(1, 400), 100)
LATIN = ["word " * length for length in LENGTHS]
CYRILLIC = ["\u0441\u043b\u043e\u0432\u043e " * (400 + length) for length in LENGTHS]
LOW, HIGH = "low vocabulary.words", "high vocabulary.words"


def words(**settings: Any) -> list[Any]:
    return [VocabularyConfig(), QuantilesConfig.model_validate({"column": "vocabulary.words"} | settings)]


def test_what_lies_between_stays() -> None:
    reasons, _ = judge(words(low=0.2, high=0.7), LATIN)
    ranks = sorted(LENGTHS)
    for length, reason in zip(LENGTHS, reasons, strict=True):
        rank = ranks.index(length)
        assert reason == (LOW if rank < 20 else HIGH if rank > 69 else "kept")


def test_equal_values_stay_together() -> None:
    assert judge(words(low=0.3, high=0.6), ["a b"] * 10)[0] == ["kept"] * 10
    assert judge(words(high=0.5), ["a"] * 6 + ["a b"] * 4)[0] == ["kept"] * 6 + [HIGH] * 4


def test_each_language_has_its_own() -> None:
    script = LanguageConfig(detector="script", min_confidence=0)
    steps = [script, *words(high=0.33, by="language.language")]
    reasons, _ = judge(steps, [*LATIN, *CYRILLIC])
    assert reasons[:100] == reasons[100:]
    assert reasons.count("kept") == 2 * 33
    together, _ = judge([script, *words(high=0.33)], [*LATIN, *CYRILLIC])
    assert together[100:] == [HIGH] * 100


def test_what_an_earlier_step_drops_has_no_rank() -> None:
    steps = [DropEmptyConfig(), *words(low=0.5)]
    assert judge(steps, [""] * 50 + ["a", "a b"])[0] == ["empty"] * 50 + [LOW, "kept"]
    assert judge(steps, ["", ""])[0] == ["empty"] * 2


def test_any_spread_over_tasks_gives_the_same() -> None:
    steps = [LanguageConfig(detector="script"), *words(low=0.1, high=0.5, by="language.script")]
    texts = [*LATIN, *CYRILLIC]
    assert judge(steps, texts)[0] == judge(steps, texts[:9], [], texts[9:150], texts[150:])[0]


def test_the_column_may_be_a_pair_of_mentions() -> None:
    steps = [MentionsConfig(), QuantilesConfig(column="mentions.women.nurse", high=0.5)]
    texts = ["She is a nurse.", "She is here.", "A nurse is here."]
    assert judge(steps, texts)[0] == ["high mentions.women.nurse", "kept", "kept"]


def test_the_text_that_tells_groups_apart_is_read_task_by_task() -> None:
    steps = [LanguageConfig(detector="script"), *words(by="language.language")]
    assert build(steps).decisions[-1].needs == ("vocabulary.words",)


def test_bad_settings_are_named_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match=r"no step measures the column 'perplexity.score'; there are vocabulary.words"):
        build(words(column="perplexity.score"))
    with pytest.raises(UsageError, match=r"'vocabulary\.word_sample'"):
        build(words(column="vocabulary.word_sample"))
    with pytest.raises(UsageError, match=r"no step measures the column 'language\.language'"):
        build(words(by="language.language"))
    with pytest.raises(UsageError, match=r"language\.language is str: quantiles are of numbers"):
        build([LanguageConfig(detector="script"), QuantilesConfig(column="language.language")])
    with pytest.raises(ValidationError, match="nothing lies between them"):
        words(low=0.5, high=0.5)
    with pytest.raises(ValidationError, match="column"):
        words(column="perplexity")
