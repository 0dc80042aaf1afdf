"""Text that is changed on purpose: the same for the same document, and what the words say."""

import re
import sys
from pathlib import Path

import pytest

from hornbook.text.config.content import SwapConfig, WordEditsConfig
from hornbook.text.config.text import PythonStepConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import build
from hornbook.text.refinery.steps.augment import PAIRS
from tests.text.refinery.running import edited


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("He saw the woman; SHE waved.", "She saw the man; HE waved."),
        ("Her dog bit him, and he told her.", "His dog bit her, and she told him."),
        ("The book is his. It was hers", "The book is hers. It was his"),
        ("The theory of mankind, shepherds", "The theory of mankind, shepherds"),
    ],
)
def test_counterparts(text: str, swapped: str):
    assert edited(SwapConfig(share=1), text) == swapped
    assert edited(SwapConfig(share=0), text) == text


def test_swapping_twice_gives_the_text_back():
    text = " ".join(word for pair in PAIRS for word in pair)
    assert edited(SwapConfig(share=1), edited(SwapConfig(share=1), text)) == text


def test_pairs_of_ones_own():
    config = SwapConfig(share=1, pairs=[("ami", "amie"), ("\u043e\u043d", "\u043e\u043d\u0430")])
    assert (
        edited(config, "Ami et AMIE, he \u043e\u043d\u0430 \u041e\u043d")
        == "Amie et AMI, he \u043e\u043d \u041e\u043d\u0430"
    )
    with pytest.raises(ValueError, match="each in one pair: look at a"):
        SwapConfig(pairs=[("a", "b"), ("a", "c")])


@pytest.mark.parametrize("config", [SwapConfig(share=0.3), WordEditsConfig(share=0.3, rate=0.5)])
def test_a_share_of_the_documents_by_their_text(config: SwapConfig | WordEditsConfig):
    texts = [f"he said that number {number} was right and went away" for number in range(2000)]
    changed = [edited(config, text) != text for text in texts]
    assert 500 < sum(changed) < 700
    assert changed == [edited(config, text) != text for text in reversed(texts)][::-1]
    assert changed != [edited(config.model_copy(update={"seed": 1}), text) != text for text in texts]


def test_word_edits_touch_what_they_count():
    words = [f"w{number}" for number in range(5000)]
    text = "\n".join(" ".join(words[at : at + 10]) for at in range(0, 5000, 10))
    step = build([WordEditsConfig(share=1, rate=0.1)]).edits[0]
    found, (left_out, repeated, exchanged) = step.edit(Document(text, "1", "s"))
    assert found is not None
    assert len(found.split("\n")) == 500
    assert len(found.split()) == 5000 - left_out + repeated
    assert set(found.split()) <= set(words)
    assert sum(a == b for a, b in zip(found.split(), found.split()[1:], strict=False)) == repeated
    assert 100 < min(left_out, repeated, exchanged) <= max(left_out, repeated, exchanged) < 230


def test_the_back_translation_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[4] / "docs" / "refinery.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?def back_translate.*?)```", page, re.DOTALL)
    (tmp_path / "my_steps.py").write_text(code)
    (tmp_path / "my_models.py").write_text("def translate(text, language):\n    return f'{language}({text})'\n")
    monkeypatch.syspath_prepend(tmp_path)
    step = build([PythonStepConfig(call="my_steps:back_translate")]).edits[0]
    texts = [f"line {number}\n\nanother" for number in range(2000)]
    found = [step.edit(Document(text, "1", "web"))[0] for text in texts]
    changed = [(text, new) for text, new in zip(texts, found, strict=True) if new != text]
    assert 420 < len(changed) < 580
    assert all(new == f"en(de({text.split()[0]} {text.split()[1]}))\n\nen(de(another))" for text, new in changed)
    assert [step.edit(Document(text, "1", "test"))[0] for text in texts] == texts
    for name in ("my_steps", "my_models"):
        monkeypatch.delitem(sys.modules, name)
