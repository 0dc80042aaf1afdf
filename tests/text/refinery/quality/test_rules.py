"""Rules against their slow spelling, on drawn documents and under drawn thresholds: the same reason for every one."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.text.config import rules as configs
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.quality.rules import C4Lines, Rules
from hornbook.text.refinery.quality.statistics import Settings, Statistics
from hornbook.text.refinery.words import characters
from hornbook.text.refinery.words.words import DEFINITIONS, word_bounds
from tests.text.refinery import plain_rules as plain
from tests.text.refinery.running import columns_of, least_seconds

SYMBOLS, TERMINALS = characters._RANGES["symbols"], characters.sentence_terminals()
SHORT = """the be of and a aa ab b und die -- - . .. ... # 1 12 x. y! z? % "q" javascript { [1] [edit] \u2026 \u2022
[\u0663] \u0130 e\u0301 \u65e5\u672c \u304b \U0001f600 \u3002 \uff1f \u06d4 \u061d \u200b \0"""
LONG = ("lorem ipsum", "Lorem Ipsum", "cookie policy", "coo\u212aie policy", "w" * 31, "v" * 1001)
PIECES = (*SHORT.split(), *LONG)
GAPS = (
    *(" ", " ", " ", " ", "  ", "\t", "\n", "\n", "\n\n", "\n\n\n", " \n", "\n ", "\n \n", "\r\n", "\r"),
    *("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u2028", "\u2029", "\u3000", "\u00a0"),
    *(". ", ".\n", "! ", "? "),
)


def split_as(definition: str) -> plain.Split:
    def split(text: str) -> list[str]:
        data = text.encode()
        starts, ends = word_bounds(np.frombuffer(data, np.uint8), definition)
        return [data[start:end].decode() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    return split


def make_texts(seed: int, count: int) -> list[str]:
    """Texts of few kinds of words and gaps, so that much is said again."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        pieces, gaps = draw.sample(PIECES, draw.randint(1, 12)), draw.sample(GAPS, draw.randint(1, 8))
        unit = "".join(draw.choice(pieces) + draw.choice(gaps) for _ in range(draw.choice((3, 10, 40, 120))))
        repeated = "".join(draw.choice((unit, unit, "q z ", "\n")) for _ in range(draw.randint(1, 4)))
        texts.append(draw.choice(("", "", "\n", " ", "\n\n")) + repeated)
    return texts


def decide(step: Rules, texts: list[str]) -> np.ndarray:
    return step.decide(columns_of(step.config, texts))


def keys_of(step: Rules, texts: list[str]) -> list[str]:
    return [("", *(rule.key for rule in step.rules))[number] for number in decide(step, texts)]


def thresholds(seed: int, config: type[Any]) -> Iterator[Any]:
    """The published ones, and sets in which some are moved and some are off."""
    yield config()
    draw = random.Random(seed)
    for _ in range(6):
        moved: dict[str, Any] = {}
        for rule in config().build().rules:
            default = config.model_fields[rule.key].default
            if draw.random() < 0.7:
                value = default * draw.choice((0.05, 0.3, 0.9, 2)) if isinstance(default, float) else draw.randint(0, 4)
                moved[rule.key] = draw.choice((value, value, None))
        yield config(**moved)


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_gopher_quality(definition: str) -> None:
    texts, languages = make_texts(1, 250), {"en": list(configs.STOP_WORDS), "de": ["und", "die", "be"]}
    split = split_as(definition)
    rows = [plain.quality(text, split, list(languages.values()), SYMBOLS, TERMINALS) for text in texts]
    for moved in thresholds(2, configs.GopherQualityConfig):
        config = moved.model_copy(update={"words": definition, "stop_words": languages})
        step = config.build()
        assert keys_of(step, texts) == [plain.first_broken(row, config) for row in rows]


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_gopher_repetition(definition: str) -> None:
    texts = make_texts(3, 250)
    rows = [plain.repetition(text, split_as(definition)) for text in texts]
    for config in thresholds(4, configs.GopherRepetitionConfig):
        step = config.model_copy(update={"words": definition}).build()
        assert keys_of(step, texts) == [plain.first_broken(row, config) for row in rows]


@pytest.mark.parametrize("terminals", ["", ".\u0664z"])
def test_fineweb(terminals: str) -> None:
    texts = make_texts(5, 250)
    rows = [plain.fineweb(text, str.split, terminals or TERMINALS, 7) for text in texts]
    for moved in thresholds(6, configs.FineWebConfig):
        config = moved.model_copy(update={"terminals": terminals, "short_line": 7})
        assert keys_of(config.build(), texts) == [plain.first_broken(row, config) for row in rows]


def test_c4_lines_then_documents() -> None:
    texts = make_texts(7, 600)
    edit, step = C4Lines(configs.C4LinesConfig()), configs.C4Config().build()
    edited = [edit.edit(Document(text, "", "s"))[0] for text in texts]
    found = [("", "lorem_ipsum", "curly_bracket", "min_sentences")[number] for number in decide(step, edited)]
    expected = [plain.c4(text, TERMINALS) for text in texts]
    assert found == [reason for reason, _ in expected]
    assert set(found) == {"", "lorem_ipsum", "curly_bracket", "min_sentences"}
    assert [text for text, reason in zip(edited, found, strict=True) if not reason] == [
        text for reason, text in expected if not reason
    ]


def test_c4_counts_what_it_removes() -> None:
    lines = [
        "A line that stays [1].",
        "no ending here",
        "Too short.",
        "Needs Javascript to run.",
        "We use cookies here.",
    ]
    text, counts = C4Lines(configs.C4LinesConfig()).edit(
        Document("\n".join([*lines, "v" * 1001 + " is a word."]), "", "s")
    )
    assert text == "A line that stays ."
    assert dict(zip(C4Lines.counters, counts, strict=True)) == {
        "citations": 1,
        "long_word": 1,
        "no_ending": 1,
        "few_words": 1,
        "javascript": 1,
        "policy": 1,
    }


def test_mc4() -> None:
    texts = [
        "\n".join("x" * length for length in lengths) for lengths in ([200, 199, 201, 7], [201, 200, 3, 200], [900])
    ]
    assert decide(configs.MC4Config().build(), texts).tolist() == [1, 0, 1]


@given(
    text=st.text(
        st.one_of(st.sampled_from(" \n\r..-a\u3002\x85\u2028\u2026\x00"), st.characters(codec="utf-8")), max_size=60
    )
)
@settings(max_examples=300)
def test_any_text_is_measured_as_python_sees_it(text: str) -> None:
    row = {name: int(values[0]) for name, values in Statistics(Settings()).measure([Document(text, "", "s")]).items()}
    lines = text.splitlines()
    assert row["characters"] == len(text)
    assert row["lines"] == len(lines)
    assert row["newlines"] == text.count("\n")
    assert row["ellipses"] == text.count("...") + text.count("\u2026")
    assert row["bullet_lines"] == sum(line.lstrip().startswith(("-", "\u2022")) for line in lines)
    assert row["ellipsis_lines"] == sum(line.rstrip().endswith(("...", "\u2026")) for line in lines)
    assert row["sentences"] == sum(plain.sentences(line, TERMINALS) for line in lines)
    assert row["words"] == len(text.split())
    assert row["text_lines"] == len(plain.re.split("\n+", text))
    lengths = sorted(map(len, text.split("\n")), reverse=True)
    assert row["third_longest_line"] == (lengths[2] if len(lengths) > 2 else 0)


def test_rows_do_not_depend_on_their_batch() -> None:
    texts = make_texts(8, 60)
    measurer = Statistics(Settings())
    together = measurer.measure([Document(text, "", "s") for text in texts])
    for place, text in enumerate(texts):
        alone = measurer.measure([Document(text, "", "s")])
        assert all(alone[name][0] == together[name][place] for name in alone)
    assert all(len(values) == 0 for values in measurer.measure([]).values())


def test_settings_that_differ_have_columns_of_their_own() -> None:
    names = [
        *(Statistics(Settings(words=definition)).name for definition in DEFINITIONS),
        Statistics(Settings(short_line=31)).name,
        Statistics(Settings(words="cjk", terminals=".")).name,
    ]
    assert names[:3] == ["statistics", "statistics_unicode", "statistics_cjk"]
    assert len(set(names)) == len(names)
    repetition = configs.GopherRepetitionConfig().build()
    assert repetition.measurers[0].name == configs.GopherQualityConfig().build().measurers[0].name


UNITS = (
    *("a", "a ", "a\n", "\n", "\u0301", ". ", "\u3002", "the be ", "l"),
    *("{", "-\n", "...\n", "\u2028", " ", "x y\n\n"),
)


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str) -> None:
    measurer = Statistics(Settings())

    def seconds(size: int) -> float:
        return least_seconds(lambda: measurer.measure([Document(unit * size, "", "s")]))

    seconds(10)
    assert seconds(80_000) < 24 * seconds(10_000) + 0.02
