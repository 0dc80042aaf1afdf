"""Edits and decisions, each against a slow and plain reference."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.text.config.text import AnyStep, DropEmptyConfig, ExactDedupConfig, NormalizeConfig
from tests.text.refinery.running import edited, judge

TEXT = st.text(
    st.one_of(st.sampled_from("a e\r\n\t\0\x0c\x85\u0301\u030a\ufb01\u212b"), st.characters(codec="utf-8")), max_size=40
)


def slow_normalize(text: str, form: str) -> str:
    out = []
    for index, char in enumerate(text):
        if char == "\r":
            if text[index + 1 : index + 2] != "\n":
                out.append("\n")
        elif char in "\x0b\x0c\x1c\x1d\x1e\x1f\x85":
            out.append(" " if char == "\x1f" else "\n")
        elif unicodedata.category(char) != "Cc" or char in "\n\t":
            out.append(char)
    joined = "".join(out)
    return joined if form == "none" else unicodedata.normalize(form, joined)  # type: ignore[arg-type]


@given(TEXT, st.sampled_from(["NFC", "NFKC", "none"]))
def test_normalize_is_what_it_says(text: str, form: str):
    config = NormalizeConfig(form=form)  # type: ignore[arg-type]
    assert edited(config, text) == slow_normalize(text, form)
    assert edited(config, edited(config, text)) == edited(config, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\n", "a\nb\nc\n"),
        ("e\0\u0301", "\u00e9"),
        ("x\x0cy\x7f", "x\ny"),
        ("a\x0bb\x85c\x1ed\x1fe\u2028f", "a\nb\nc\nd e\u2028f"),
        ("\tkept\n", "\tkept\n"),
        ("\ufb01", "\ufb01"),
        ("\0\0\0", ""),
        ("", ""),
    ],
)
def test_normalize_examples(text: str, expected: str):
    assert edited(NormalizeConfig(), text) == expected


def slow_decide(steps: list[AnyStep], texts: list[str]) -> list[str]:
    reasons = ["kept"] * len(texts)
    for step in steps:
        seen: set[str] = set()
        for row, text in enumerate(texts):
            if reasons[row] != "kept":
                continue
            if step.kind == "drop_empty" and not text.strip():
                reasons[row] = "empty"
            elif step.kind == "exact_dedup":
                if text in seen:
                    reasons[row] = "exact duplicate"
                seen.add(text)
    return reasons


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["", " ", "\n", "a", "b", "c", "ab"]), max_size=40),
    st.permutations([DropEmptyConfig(), ExactDedupConfig()]),
    st.integers(0, 40),
)
def test_decisions_equal_the_slow_reference_however_tasks_are_cut(texts: list[str], steps: list[AnyStep], cut: int):
    found, _ = judge([NormalizeConfig(form="none"), *steps], texts[:cut], texts[cut:])
    assert found == slow_decide(steps, texts)


@pytest.mark.parametrize(
    "text", ["\u200b", "\ufeff", "\u2028", "\u00a0", "\u3000", "\u2060 \u180e".replace("\u180e", "")]
)
def test_invisible_characters_make_no_document(text: str):
    assert judge([DropEmptyConfig()], [text, "a"])[0] == ["empty", "kept"]
