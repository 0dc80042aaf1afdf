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

from benchmarks.planted_duplicates import DATA
from benchmarks.planted_personal import MAKERS, digits

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
        """Of each kind one that is true and one that is not, and a card with a wrong check digit."""
        found = []
        for kind in PERSONAL:
            value, place = _true_value(kind, self.draw), f"<{kind.upper()}>"
            carrier = self.draw.choice(LINES[language]["carriers"])
            found.append((kind, carrier.format(value), carrier.format(place)))
            wrong = {
                "invalid card": MAKERS["card"](self.draw, False),
                f"not {kind}": self.draw.choice(_LOOKALIKES[kind])(self.draw),
            }
            for name in list(wrong)[kind != "card" :]:
                line = self.draw.choice(LINES[language]["carriers"]).format(wrong[name])
                found.append((name, line, line))
        return found

    def _page_lines(self, language: str) -> list[tuple[str, str, str]]:
        page, prose = (self._filled(LINES[language][name]) for name in ("page", "prose"))
        return [("boilerplate", page, ""), ("not boilerplate", prose, prose)]

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


def _true_value(kind: str, draw: random.Random) -> str:
    """As `planted_personal` makes it, or in one form of a quarter that it does not know."""
    return draw.choice(_FORMS[kind])(draw) if kind in _FORMS and draw.random() < 0.25 else MAKERS[kind](draw, True)


def _letters(draw: random.Random, count: int) -> str:
    return "".join(draw.choices("abcdefghiklmnoprstuvw", k=count))


_FORMS: dict[str, list[Callable[[random.Random], str]]] = {
    "email": [
        lambda draw: f"{_letters(draw, 5).upper()}.{_letters(draw, 4).upper()}@EXAMPLE.ORG",
        lambda draw: f"{_letters(draw, 4)}.{_letters(draw, 6)}+{digits(draw, 2)}@mail.{_letters(draw, 5)}.co.jp",
        lambda draw: f"j\u00fcrgen.{_letters(draw, 5)}@b\u00fccher.example",
    ],
    "phone": [
        lambda draw: f"+81 3-{digits(draw, 4)}-{digits(draw, 4)}",
        lambda draw: f"+966 11 {digits(draw, 3)} {digits(draw, 4)}",
        lambda draw: f"+44 (0)20 7946 {digits(draw, 4)}",
        lambda draw: f"+39-06-{digits(draw, 4)}-{digits(draw, 4)}",
    ],
    "key": [
        lambda draw: f"github_pat_{_letters(draw, 22)}_{_letters(draw, 59)}",
        lambda draw: f"npm_{_letters(draw, 36)}",
    ],
}


def _hexadecimal(draw: random.Random, count: int) -> str:
    return f"{draw.getrandbits(4 * count):0{count}x}"


_LOOKALIKES: dict[str, list[Callable[[random.Random], str]]] = {
    "email": [
        lambda draw: f"{_letters(draw, 5)}@localhost",
        lambda draw: f"@{_letters(draw, 6)}",
        lambda draw: f"{_letters(draw, 4)}@{digits(draw, 1)}.{digits(draw, 1)}.{digits(draw, 1)}",
        lambda draw: f"user @ {_letters(draw, 5)}.h",
    ],
    "phone": [
        lambda draw: f"{draw.randint(1990, 2030)}-{draw.randint(10, 12)}-{draw.randint(10, 28)} {digits(draw, 2)}:30",
        lambda draw: f"{draw.randint(10, 28)}.{draw.randint(10, 12)}.{draw.randint(1990, 2030)}",
        lambda draw: f"ISBN 978-3-{digits(draw, 2)}-{digits(draw, 6)}-{digits(draw, 1)}",
        lambda draw: f"{draw.randint(1990, 2030)}{draw.randint(10, 12)}{draw.randint(10, 28)}",
        lambda draw: f"RFC {digits(draw, 4)}",
        lambda draw: f"{digits(draw, 3)}.{digits(draw, 3)} km",
        lambda draw: f"0x{_hexadecimal(draw, 8)}",
    ],
    "iban": [lambda draw: MAKERS["iban"](draw, False), lambda draw: f"DE{digits(draw, 9)}"],
    "card": [
        lambda draw: f"{draw.randint(10**12, 10**13)}",
        lambda draw: f"0x{digits(draw, 16)}",
        lambda draw: f"3.{digits(draw, 15)}",
    ],
    "key": [
        lambda draw: _hexadecimal(draw, 40),
        lambda draw: f"sha256:{_hexadecimal(draw, 64)}",
        lambda draw: "-".join(_hexadecimal(draw, size) for size in (8, 4, 4, 4, 12)),
        lambda draw: f"AKIA{_letters(draw, 4)}",
        lambda draw: f"password = {draw.choice(('None', 'getpass()', '<secret>'))}",
    ],
    "ip": [
        lambda draw: f"version {draw.randint(2, 9)}.{draw.randint(0, 40)}.{draw.randint(0, 20)}.{draw.randint(1, 9)}",
        lambda draw: f"v{draw.randint(1, 9)}.{draw.randint(1, 9)}.0.3",
        lambda draw: f"{draw.randint(1, 9)}.{draw.randint(10, 60)}.{draw.randint(0, 9)}-{draw.randint(1, 9)}",
        lambda draw: f"192.168.{draw.randint(0, 250)}.{draw.randint(1, 250)}",
        lambda draw: f"{draw.randint(10, 23)}:{draw.randint(10, 59)}:{draw.randint(10, 59)}",
        lambda draw: f"{draw.randint(256, 999)}.{digits(draw, 2)}.1.{digits(draw, 2)}",
    ],
}


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
