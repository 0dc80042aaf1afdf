"""Documents with a planted fault each, so that precision and recall of the rules of quality are true figures."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

from hornbook.files.durable import write_atomic
from hornbook.text.config.rules import STOP_WORDS

DAMAGED = "#damaged-"
"""Part of the id of a damaged document, before the name of its fault."""
_LONGEST = 4000
"""Characters of a document that are damaged."""
_SYMBOLS = "0123456789#$%&*+/<=>@|~"
Damage = Callable[[str, float, random.Random], str]


def _cut(text: str, share: float, _: random.Random) -> str:
    words = text.split()
    return " ".join(words[: 1 + round((1 - share) * 150)])


def _repeat(text: str, share: float, draw: random.Random) -> str:
    lines = text.splitlines()
    return "\n".join(draw.choice(lines[:3]) if draw.random() < share else line for line in lines)


def _scramble(text: str, share: float, draw: random.Random) -> str:
    def word(match: re.Match[str]) -> str:
        return "".join(draw.choices(_SYMBOLS, k=len(match[0]))) if draw.random() < share else match[0]

    return re.sub(r"\S+", word, text)


def _break(text: str, share: float, draw: random.Random) -> str:
    return "".join(f"{word}\n" if draw.random() < share else f"{word} " for word in text.split())


def _glue(text: str, share: float, draw: random.Random) -> str:
    return re.sub(" ", lambda _: "" if draw.random() < share else " ", text)


def _drop_stop_words(text: str, share: float, draw: random.Random) -> str:
    dropped = {word for word in STOP_WORDS if draw.random() < 0.5 + share / 2}
    return " ".join(word for word in text.split() if word.lower() not in dropped)


FAULTS: dict[str, Damage] = {
    "cut": _cut,
    "repeated": _repeat,
    "scrambled": _scramble,
    "broken-lines": _break,
    "glued": _glue,
    "keywords": _drop_stop_words,
}


def plant_damage(path: Path, seed: int) -> None:
    """Add damaged copies to a .jsonl file: the faults in turn, from hardly visible to complete.

    Rows with `#` in their ids, which are planted already, and blank ones get none.
    """
    draw = random.Random(seed)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    whole = [row for row in rows if "#" not in row["id"] and row["text"].strip()]
    for number, row in enumerate(whole):
        name, damage = list(FAULTS.items())[number % len(FAULTS)]
        text = damage(row["text"][:_LONGEST], draw.random(), draw)
        rows.append({"id": f"{row['id']}{DAMAGED}{name}", "text": text})
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
