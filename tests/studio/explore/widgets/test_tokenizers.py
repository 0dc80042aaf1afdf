"""Tokenizers: the pieces are the text, the counts are those of the engine's tokenizer."""

import subprocess
import sys
from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.studio.explore.explorer import LONGEST_TEXT
from hornbook.studio.explore.page_answer import answered, answered_further
from hornbook.studio.explore.views import Table
from hornbook.studio.explore.widgets.tokenizers import (
    ENGLISH,
    SHOWN,
    SIZES,
    TEXT,
    cut_into_tokens,
    passage_of,
    tokenizers,
)
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.train import train_bpe

TEXTS = [TEXT, "a", "\n", "naïve café 漢字 👩‍🚀\t\x1b[0m \r\n\x00", "<|endoftext|> <0xC3> Ġ", "x" * 5000]


def rows(table: Table) -> dict[str, list[Any]]:
    return {str(row[0]): list(row[1:]) for row in table.rows}


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_joined_are_the_text(text: str) -> None:
    for name, pieces in cut_into_tokens(text, "", 512).items():
        assert b"".join(pieces) == text.encode(), name


def test_the_tokens_are_those_of_the_engine() -> None:
    bpe = train_bpe(BPE(vocab=512), [[ENGLISH]])
    found = rows(tokenizers(learn_from=ENGLISH).tokenizers)
    assert found["BPE"] == [bpe.vocab_size, len(bpe.encode(TEXT)), len(TEXT.encode()) / len(bpe.encode(TEXT))]
    assert found["bytes"][:2] == [256, len(TEXT.encode())]
    assert found["characters"][:2] == [len(set(TEXT)), len(TEXT)]
    assert found["words"][1] <= found["BPE"][1] <= found["bytes"][1]


def test_german_costs_more_for_a_tokenizer_that_learned_english() -> None:
    english, german, *_ = tokenizers(learn_from=ENGLISH).lines.rows
    costs = [(int(row[3] or 0) / int(row[1] or 0)) for row in (english, german)]
    assert costs[1] > 1.2 * costs[0]


def test_lines_add_up_to_the_whole_text() -> None:
    answer = tokenizers()
    sums = [sum(int(row[column] or 0) for row in answer.lines.rows) for column in (1, 2, 3, 4)]
    assert sums == [row[2] for row in answer.tokenizers.rows]


def test_passages_show_bars_half_characters_and_control_characters() -> None:
    assert passage_of([b"Wie", b" gr", b"\xc3", b"\xbc", b"n\n", b"\t\x1b"]) == "Wie| gr|<C3>|<BC>|n↵\n|→<1B>"
    assert passage_of([b"ab"] * 400).replace("|", "") == "ab" * (SHOWN // 2)
    texts = [each.text for each in tokenizers(text="".join(TEXTS)).pieces.passages]
    assert all(each.isprintable() for text in texts for each in text.replace("\n", ""))


def test_more_vocabulary_means_fewer_tokens() -> None:
    (curve,) = answered_further(tokenizers, {})["sizes"]["curves"]
    assert curve["x"] == [*SIZES]
    assert curve["y"] == sorted(curve["y"])
    assert curve["y"][0] == 1


@pytest.mark.parametrize("name", ["text", "learn_from"])
def test_ten_megabytes_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} = .*at most {LONGEST_TEXT}") as refused:
        tokenizers(**{name: "ab " * (10 * 2**20 // 3)})
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("text", ["", "\ud800", 3, None])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="text"):
        tokenizers(text=text)


def test_the_longest_text_is_answered() -> None:
    answer = tokenizers(text=("äöü " * LONGEST_TEXT)[:LONGEST_TEXT], vocabulary=4096)
    assert rows(answer.tokenizers)["characters"][1] == LONGEST_TEXT


def test_its_settings_are_those_of_a_recipe() -> None:
    assert answered(tokenizers, {"vocabulary": "1k"})["toml"] == '[text.tokenizer]\nkind = "bpe"\nvocab = 1000\n'
    assert all(place["line"] > 1 for place in tokenizers.places())


def test_these_widgets_load_no_torch() -> None:
    code = "import sys; from hornbook.studio.explore.explorer import load_explorer\n"
    code += "made = [load_explorer(name) for name in ('number-formats', 'tokenizers', 'problems')]\n"
    code += "[(each(), each.places()) for each in made]; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
