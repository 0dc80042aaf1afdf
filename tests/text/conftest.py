"""Helpers of the text room: small inputs, and the bytes of a whole folder."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = (
    *("the", "a", "model", "learns", "to", "read", "one", "page", "of", "letters", "and", "says", "them", "again"),
    *("\u00e9t\u00e9", "na\u00efve", "\u03a9mega", "\u6570", "12", "345", "def", "return"),
)


@pytest.fixture
def read_tree() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder, by relative path."""

    def read(folder: Path) -> dict[str, bytes]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read


@pytest.fixture(scope="session")
def write_rows() -> Callable[[Path, list[Any]], Path]:
    """Write objects as JSON lines."""

    def write(path: Path, rows: list[Any]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def make_texts() -> Callable[..., list[str]]:
    """Random texts of words and lines; every eighth repeats an earlier one."""

    def make(count: int, seed: int = 0, words: int = 60) -> list[str]:
        draw = random.Random(seed)
        texts: list[str] = []
        for number in range(count):
            if texts and number % 8 == 7:
                texts.append(draw.choice(texts))
            else:
                texts.append(" ".join(draw.choices([*WORDS, "\n"], k=draw.randint(1, 2 * words))) + f" {number}")
        return texts

    return make
