"""Training: the same tokenizer every time, every byte in it, and no text that takes forever."""

import subprocess
import sys
from pathlib import Path

import pytest
import regex

from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.train import PATTERN, train_bpe
from hornbook.text.tokenizer.files import save_tokenizer
from hornbook.text.tokenizer.tokenizer import END_OF_TEXT
from tests.text.refinery.running import least_seconds

TEXTS = [
    "the model reads the page; the model reads it again",
    "x = 12345\n\n  y\t'll  WE'LL",
    "\u00e9t\u00e9 \u6570\u5b66",
] * 30
CATASTROPHES = {
    "letters": "a" * 1_000_000,
    "accents": "e" + "\u0301" * 100_000,
    "blanks": " " * 1_000_000,
    "line ends": "\n" * 500_000,
    "digits": "1" * 500_000,
    "unassigned": "\U000e0001" * 50_000,
}


def test_training_twice_gives_the_same_bytes(tmp_path: Path):
    script = (
        "import sys; from pathlib import Path\n"
        "from hornbook.text.tokenizer.bpe.train import *; from hornbook.text.config.text import BPE\n"
        "from hornbook.text.tokenizer.files import *\n"
        f"texts = {TEXTS!r}\n"
        "save_tokenizer(train_bpe(BPE(vocab=350), [texts]), Path(sys.argv[1]))\n"
    )
    save_tokenizer(train_bpe(BPE(vocab=350), [TEXTS[:40], TEXTS[40:]]), tmp_path / "here")
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "there")], check=True, env={"RAYON_NUM_THREADS": "1"})
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_the_vocabulary_has_the_end_the_bytes_and_merges():
    tokenizer = train_bpe(BPE(vocab=300), [TEXTS])
    assert tokenizer.vocab_size == 300
    assert (tokenizer.begin, tokenizer.end) == (END_OF_TEXT, END_OF_TEXT)
    assert all(len(tokenizer.encode(chr(code))) <= len(chr(code).encode()) for code in range(0x300))
    assert len(tokenizer.encode("the model reads")) < 15


def test_the_smallest_vocabulary_is_bytes():
    tokenizer = train_bpe(BPE(vocab=257), [TEXTS])
    assert tokenizer.vocab_size == 257
    assert len(tokenizer.encode("page")) == 4


@pytest.mark.parametrize("texts", [[], [[]], [["a"]], [[""]]])
def test_too_little_text_gives_fewer_tokens_not_an_error(texts: list[list[str]]):
    tokenizer = train_bpe(BPE(vocab=1000), texts)
    assert tokenizer.vocab_size == 257
    assert tokenizer.decode(tokenizer.encode("anything \u6570")) == "anything \u6570"


def test_the_text_is_split_by_the_pattern():
    """No token crosses a border of the split, judged by another regex engine."""
    tokenizer = train_bpe(BPE(vocab=500), [TEXTS])
    for text in [*TEXTS[:3], "don't  stop\r\n\r\n now12345678 (ok)!!\n  x", " \n\u3000a"]:
        pieces = regex.findall(PATTERN, text)
        assert "".join(pieces) == text
        assert tokenizer.encode(text) == [token for piece in pieces for token in tokenizer.encode(piece)]


@pytest.mark.parametrize("name", list(CATASTROPHES))
def test_catastrophic_input_takes_linear_time(name: str):
    """Ten times the text takes no more than about ten times as long (a quadratic encoder would take 100 times)."""
    tokenizer, text = train_bpe(BPE(vocab=300), [TEXTS]), CATASTROPHES[name]

    def comes_back(part: str) -> None:
        assert tokenizer.decode(tokenizer.encode(part)) == part

    most = 40 * least_seconds(lambda: comes_back(text[: len(text) // 10])) + 0.5
    assert least_seconds(lambda: comes_back(text), most) < most
