"""A corpus with planted truth: real documents, copies of some with a known share of words edited, test items."""

import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[3] / "shared" / "data"
EDITS = (0.0, 0.05, 0.1, 0.2, 0.3)
MOST_BYTES, LEAST_WORDS = 60_000, 60
SHINGLE = 5
_IDEOGRAPHS = re.compile("[\u3041-\u30ff\u3400-\u9fff\uff00-\uff64]+")
"""A run of them is a sentence, and sentences stand in many documents."""


@dataclass(slots=True)
class Planted:
    """Texts in random order, and what was planted into them."""

    texts: list[str] = field(default_factory=list)
    pairs: list[tuple[int, int, float]] = field(default_factory=list)
    """(row of the original, row of the copy, share of words that were edited)."""
    items: list[str] = field(default_factory=list)
    """Test items."""
    contaminated: dict[int, float] = field(default_factory=dict)
    """Row of a document with an item in it -> share of the item's words that were replaced."""


def real_texts(count: int, rng: np.random.Generator) -> list[str]:
    """Different documents of middle length, in several languages, in random order."""
    texts: dict[str, None] = {}
    for path in sorted(DATA.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts.update(dict.fromkeys(json.loads(line)["text"] for line in file))
    usable = [text for text in texts if len(text) <= MOST_BYTES and len(text.split()) >= LEAST_WORDS]
    return [usable[place] for place in rng.permutation(len(usable))[:count]]


def edited(text: str, share: float, rng: np.random.Generator) -> str:
    """Each word is replaced, deleted or doubled with the probability `share`; blanks stay single."""
    words = text.split(" ")
    changes = np.where(rng.random(len(words)) < share, rng.integers(1, 4, len(words)), 0).tolist()
    others = rng.integers(0, len(words), len(words)).tolist()
    found = []
    for word, change, other in zip(words, changes, others, strict=True):
        found += {0: [word], 1: [words[other] + "ly"], 2: [], 3: [word, words[other]]}[change]
    return " ".join(found)


def plant(documents: int, copies: int, items: int, seed: int = 0) -> Planted:
    """`copies` copies at each share of edits, and `items` test items in two documents each: as it is, and altered."""
    rng = np.random.default_rng(seed)
    base = real_texts(documents + items, rng)
    base, kept_out = base[:documents], base[documents:]
    planted = Planted()
    pieces: list[tuple[str, int, float]] = [(text, -1, 0.0) for text in base]
    for share in EDITS:
        for original in rng.choice(documents, copies, replace=False).tolist():
            pieces.append((edited(base[original], share, rng), original, share))
    order = rng.permutation(len(pieces)).tolist()
    place = {piece: row for row, piece in enumerate(order)}
    planted.texts = [pieces[piece][0] for piece in order]
    planted.pairs = [(place[pieces[n][1]], place[n], pieces[n][2]) for n in range(documents, len(pieces))]
    planted.items = [_passage(text, rng) for text in kept_out]
    hosts = rng.choice(len(pieces), 2 * len(planted.items), replace=False).tolist()
    for host, item, share in zip(hosts, [*planted.items, *planted.items], [0.0] * items + [0.1] * items, strict=True):
        planted.texts[host] += "\n\n" + _replaced(item, share, rng) + "\n"
        planted.contaminated[host] = share
    return planted


def _passage(text: str, rng: np.random.Generator) -> str:
    """Words of a document in an order that stands nowhere else; what has no blanks within is no one word."""
    words = rng.permutation(_IDEOGRAPHS.sub(" ", text).split()).tolist()
    length = int(rng.integers(20, LEAST_WORDS))
    start = int(rng.integers(0, len(words) - length + 1))
    return " ".join(words[start : start + length])


def _replaced(text: str, share: float, rng: np.random.Generator) -> str:
    return " ".join("other" if rng.random() < share else word for word in text.split())


def shingle_hashes(text: str) -> np.ndarray:
    """Sorted hashes of the shingles of what stands between blanks, for true similarities."""
    words = text.split()
    width = min(SHINGLE, len(words))
    return np.unique([hash(tuple(words[start : start + width])) for start in range(len(words) - width + 1)])


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Shared shingles over all of two documents."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)
