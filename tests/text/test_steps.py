"""Edits and decisions, each against a slow and plain reference."""

import unicodedata

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hornbook.text.config import DropEmpty, ExactDedup, Normalize, StepConfig
from hornbook.text.steps import build_edit, content_hash, decide, normalize_edit

TEXT = st.text(
    st.one_of(st.sampled_from("a e\r\n\t\0\x0c\x85\u0301\u030a\ufb01\u212b"), st.characters(codec="utf-8")), max_size=40
)


def slow_normalize(text: str, form: str) -> str:
    out = []
    for index, char in enumerate(text):
        if char == "\r":
            if text[index + 1 : index + 2] != "\n":
                out.append("\n")
        elif unicodedata.category(char) != "Cc" or char in "\n\t":
            out.append(char)
    joined = "".join(out)
    return joined if form == "none" else unicodedata.normalize(form, joined)  # type: ignore[arg-type]


@given(TEXT, st.sampled_from(["NFC", "NFKC", "none"]))
def test_normalize_is_what_it_says(text: str, form: str):
    edit = normalize_edit(Normalize(form=form))  # type: ignore[arg-type]
    assert edit(text) == slow_normalize(text, form)
    assert edit(edit(text)) == edit(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\n", "a\nb\nc\n"),
        ("e\0\u0301", "\u00e9"),
        ("x\x0cy\x7f", "xy"),
        ("\tkept\n", "\tkept\n"),
        ("\ufb01", "\ufb01"),
    ],
)
def test_normalize_examples(text: str, expected: str):
    assert build_edit([Normalize()])(text) == expected


def test_without_edits_the_text_stays():
    assert build_edit([DropEmpty(), ExactDedup()])("a\r\n") == "a\r\n"


def columns_of(texts: list[str]) -> dict[str, np.ndarray]:
    from hornbook.text.steps import SIGNALS

    hashes = b"".join(content_hash(text.encode()) for text in texts)
    columns = {name: np.array([signal(text) for text in texts], dtype=np.int64) for name, signal in SIGNALS.items()}
    return {**columns, "hash": np.frombuffer(hashes, np.uint64).reshape(-1, 2)}


def slow_decide(steps: list[StepConfig], texts: list[str]) -> list[str]:
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


@given(
    st.lists(st.sampled_from(["", " ", "\n", "a", "b", "c", "ab"]), max_size=40),
    st.lists(st.sampled_from([Normalize(), DropEmpty(), ExactDedup()]), max_size=4),
)
def test_decisions_equal_the_slow_reference(texts: list[str], steps: list[StepConfig]):
    names, reasons = decide(steps, columns_of(texts))
    assert [names[reason] for reason in reasons] == slow_decide(steps, texts)


@pytest.mark.parametrize(
    "text", ["\u200b", "\ufeff", "\u2028", "\u00a0", "\u3000", "\u2060 \u180e".replace("\u180e", "")]
)
def test_invisible_characters_make_no_document(text: str):
    names, reasons = decide([DropEmpty()], columns_of([text, "a"]))
    assert [names[reason] for reason in reasons] == ["empty", "kept"]


def test_the_hash_is_xxh3_128():
    assert content_hash(b"text").hex() == xxhash.xxh3_128_hexdigest(b"text")
