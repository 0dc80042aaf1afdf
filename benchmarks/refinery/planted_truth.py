"""A corpus of seven languages in which everything that a refinery must find was planted, and what only looks like it.

Documents are passages of one book in seven languages, each piece of its text used once: a copy, a planted line or a
test item is then the only thing that a document shares with another.
"""

import gzip
import json
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.refinery.planted_duplicates import DATA
from benchmarks.refinery.planted_forms import UNSEEN, lookalike, true_value, unseen_value
from benchmarks.refinery.planted_personal import MAKERS

BOOKS = {
    "en": ("handbook-en-US", "debian-reference", "git-doc"),
    "de": ("handbook-de-DE",),
    "fr": ("handbook-fr-FR",),
    "ru": ("handbook-ru-RU",),
    "zh": ("handbook-zh-CN",),
    "ja": ("handbook-ja-JP",),
    "ar": ("handbook-ar-MA",),
}
"""Files of `DATA` by language: one book in all of them, and more English, for the listings of the book count once."""
LINES: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("planted_lines.toml").read_text("utf-8")
)
CATEGORIES = ("hate", "violence", "sexual", "self_harm")
EDITS = (0.05, 0.1, 0.2, 0.3)
PERSONAL = ("email", "phone", "iban", "card", "key", "ip")
_UNSPACED = ("zh", "ja")
_WORDS, _OTHERS = {"zh": 80, "ja": 100}, 36
"""Units of a passage at least: characters, and of other languages words."""
_MOST = 6600
"""Passages of a language."""
_SENTENCE = re.compile(r"(?<=[.!?\u061f])\s+|(?<=[\u3002\uff01\uff1f])")
_WORD = re.compile("[\u3041-\u30ff\u3400-\u9fff]|[^\\W\u3041-\u30ff\u3400-\u9fff]+")
_RUN = 13
_ITEM, _PHRASE = 20, 8
"""Words of the shortest test item, and of the phrase of one that an innocent document quotes."""


@dataclass(slots=True)
class Doc:
    """A document, and what is true of it."""

    text: str
    language: str
    kind: str = "plain"
    """What was planted, or looks like it (`not ...`); `plain` for the other half of pairs and hosts."""
    other: int = -1
    """The document it is a copy of."""
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    """(kind or "not KIND", the line, what must become of it), line by line of a host."""


def units(text: str, language: str) -> list[str]:
    """Words, or characters where no blanks are between words."""
    return list(text) if language in _UNSPACED else text.split(" ")


def join(parts: list[str], language: str) -> str:
    """The text of units."""
    return ("" if language in _UNSPACED else " ").join(parts)


def _sentences(language: str) -> Iterator[str]:
    for name in BOOKS[language]:
        with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for row in file:
                for line in json.loads(row)["text"].split("\n"):
                    yield from (part.strip() for part in _SENTENCE.split(line.strip()))


def passages(language: str, known: set[tuple[str, ...]]) -> Iterator[list[str]]:
    """Sentences of the book in its order, some at a time; none that shares a run of `_RUN` words with `known` ones,
    which grow: the editions share listings, and terminals say the same again and again."""
    found: list[str] = []
    tail: list[str] = []
    size, least = 0, _WORDS.get(language, _OTHERS)
    for sentence in _sentences(language):
        words = _WORD.findall(sentence.lower())
        row = tail + words
        runs = {tuple(words), *(tuple(row[start : start + _RUN]) for start in range(len(row) - _RUN + 1))}
        if not words or known & runs:
            continue
        known |= runs
        tail = row[1 - _RUN :]
        found.append(sentence)
        size += len(units(sentence, language))
        if size >= least:
            yield found
            found, tail, size = [], [], 0


def edited(text: str, share: float, language: str, draw: random.Random) -> str:
    """Each unit is exchanged for another of the text, left out or doubled, with the chance `share`."""
    words = units(text, language)
    found = []
    for word in words:
        change = draw.randrange(3) if draw.random() < share else 3
        found += ([draw.choice(words)], [], [word, word], [word])[change]
    return join(found, language)


class Planter:
    """Makes the documents, `count` of each kind, in turn in the languages."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.draw = count, random.Random(seed)
        known: set[tuple[str, ...]] = set()
        self._texts = {language: self._shuffled(language, known) for language in BOOKS}
        self._sizes = {language: len(texts) for language, texts in self._texts.items()}
        self.documents: list[Doc] = []
        self.items: list[str] = []
        self._items: list[tuple[str, str]] = []

    def _shuffled(self, language: str, known: set[tuple[str, ...]]) -> list[list[str]]:
        found = list(islice(passages(language, known), _MOST))
        self.draw.shuffle(found)
        return found

    def plant(self) -> None:
        """Everything, then the order of a lottery."""
        self._copies()
        self._take_items()
        self._contaminated()
        self._hosts()
        self._harmful()
        order = list(range(len(self.documents)))
        self.draw.shuffle(order)
        place = {old: new for new, old in enumerate(order)}
        self.documents = [self.documents[old] for old in order]
        for each in self.documents:
            each.other = place.get(each.other, -1)

    def _languages(self) -> Iterator[str]:
        """One after the other, so that all languages come to their ends together."""
        for _ in range(self.count):
            yield max(self._texts, key=lambda language: len(self._texts[language]) / self._sizes[language])

    def _passage(self, language: str) -> list[str]:
        return self._texts[language].pop()

    def _add(self, text: str, language: str, kind: str = "plain", other: int = -1) -> Doc:
        self.documents.append(Doc(text, language, kind, other))
        return self.documents[-1]

    def _copies(self) -> None:
        """Copies as they are and edited, and documents of which half stands in another."""
        for share in (0.0, *EDITS):
            for language in self._languages():
                text = "\n".join(self._passage(language))
                original = len(self.documents)
                self._add(text, language)
                copy = edited(text, share, language, self.draw) if share else text
                self._add(copy, language, f"copy, {share:.0%} edited" if share else "exact copy", original)
        originals = [number for number, each in enumerate(self.documents) if each.kind == "plain"]
        for number in self.draw.sample(originals, self.count):
            one, language = self.documents[number].text, self.documents[number].language
            half = units(one, language)[: len(units(one, language)) // 2]
            rest = units("\n".join(self._passage(language)), language)
            self._add(join([*half, *rest[len(rest) // 2 :]], language), language, "not a copy, half of one", number)

    def _take_items(self) -> None:
        """Test items: the beginning of a passage that stands nowhere else."""
        for language in self._languages():
            least = _ITEM * (2 if language in _UNSPACED else 1)
            words: list[str] = []
            while len(_WORD.findall(join(words, language))) < _ITEM:
                whole = units(" ".join(self._passage(language)), language)
                words = whole[: self.draw.randint(least, 2 * least)]
            self._items.append((language, join(words, language)))
        self.items = [item for _, item in self._items]

    def _contaminated(self) -> None:
        """Each item whole, altered, as a phrase that a text may quote, and as its words in another order."""
        forms: dict[str, Callable[[str, str], str]] = {
            "test item": lambda item, _: item,
            "test item, 10% altered": self._altered,
            "not an item, a phrase of it": self._phrase,
            "not an item, its words": self._mixed,
        }
        for kind, change in forms.items():
            for language, item in self._items:
                sentences = self._passage(language)
                sentences.insert(self.draw.randint(0, len(sentences)), change(item, language))
                self._add("\n".join(sentences), language, kind)

    def _altered(self, item: str, language: str) -> str:
        parts = units(item, language)
        return join([self.draw.choice(parts) if self.draw.random() < 0.1 else part for part in parts], language)

    def _phrase(self, item: str, language: str) -> str:
        words = _WORD.findall(item)
        start = self.draw.randint(0, len(words) - _PHRASE)
        return join(words[start : start + _PHRASE], language)

    def _mixed(self, item: str, language: str) -> str:
        words = _WORD.findall(item)
        return join(self.draw.sample(words, len(words)), language)

    def _hosts(self) -> None:
        """Passages whose sentences stand among planted lines."""
        for language in self._languages():
            sentences = [("", line, line) for line in self._passage(language)]
            found = [*self._personal_lines(language), *self._page_lines(language), *sentences]
            self.draw.shuffle(found)
            self._add("\n".join(line for _, line, _ in found), language).lines = found

    def _personal_lines(self, language: str) -> list[tuple[str, str, str]]:
        """Of each kind one that is true, one of unseen form and one that is none, and a card with a wrong digit."""
        found = []
        for kind in PERSONAL:
            values = {kind: true_value(kind, self.draw)}
            if kind in UNSEEN:
                values[f"{kind}, unseen forms"] = unseen_value(kind, self.draw)
            # In the same sentence the placeholder of one would pass for that of the other.
            carriers = self.draw.sample(LINES[language]["carriers"], len(values))
            for (name, value), carrier in zip(values.items(), carriers, strict=True):
                found.append((name, carrier.format(value), carrier.format(f"<{kind.upper()}>")))
            wrong = {
                "invalid card": MAKERS["card"](self.draw, False),
                f"not {kind}": lookalike(kind, self.draw),
            }
            for name in list(wrong)[kind != "card" :]:
                line = self.draw.choice(LINES[language]["carriers"]).format(wrong[name])
                found.append((name, line, line))
        return found

    def _page_lines(self, language: str) -> list[tuple[str, str, str]]:
        page, unseen, prose = (self._filled(LINES[language][name]) for name in ("page", "unseen", "prose"))
        return [
            ("boilerplate", page, ""),
            ("boilerplate, unseen lines", unseen, ""),
            ("not boilerplate", prose, prose),
        ]

    def _harmful(self) -> None:
        for number, language in enumerate(self._languages()):
            category = CATEGORIES[number % len(CATEGORIES)]
            term = self.draw.choice(LINES[language][category])
            term = self.draw.choice((term, term.upper(), term.capitalize()))
            for kind, line in (
                (f"toxic: {category.replace('_', '-')}", self.draw.choice(LINES[language]["carriers"]).format(term)),
                ("not toxic", self._filled(LINES[language]["lookalikes"])),
            ):
                sentences = self._passage(language)
                sentences.insert(self.draw.randint(0, len(sentences)), line)
                self._add("\n".join(sentences), language, kind)

    def _filled(self, lines: list[str]) -> str:
        return self.draw.choice(lines).format(name=self.draw.choice(_SITES), n=self.draw.randint(2, 2000))


_SITES = ("Example", "Musterhaus", "Quarzo", "Alpenblick 24")


def terms() -> dict[str, dict[str, list[str]]]:
    """Category -> language -> terms."""
    return {category: {language: lines[category] for language, lines in LINES.items()} for category in CATEGORIES}


def planted(count: int, seed: int = 0) -> tuple[list[Doc], list[str]]:
    """(documents, test items) with `count` of each kind."""
    planter = Planter(count, seed)
    planter.plant()
    return planter.documents, planter.items


def rows_of(documents: list[Doc]) -> Iterator[dict[str, Any]]:
    """As prepare reads them."""
    for number, each in enumerate(documents):
        yield {"id": str(number), "text": each.text}
