"""A dirty corpus made of clean documents: pages as crawls have them, with a known share of each kind of dirt.

The shares were chosen once, before anything was trained, and are milder than a crawl. Of the English documents of
Common Crawl, RefinedWeb (Penedo et al. 2023, https://arxiv.org/abs/2306.01116, Figure 2) drops half for their quality
and half of the others as duplicates, so a quarter stays; here 55 of 90 bytes are good pages. Copies come from few
pages as well as many, since templates and terms of use are copied thousands of times (Lee et al. 2022,
https://arxiv.org/abs/2107.06499, Table 2).
"""

import gzip
import html
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import xxhash

from benchmarks.refinery.planted_duplicates import DATA, edited

ENGLISH = (
    "cppreference",
    "debian-reference",
    "git-doc",
    "handbook-en-US",
    "linux-doc-6.1",
    "python3.11",
    "vim",
)
OTHERS = ("handbook-ar-MA", "handbook-de-DE", "handbook-fr-FR", "handbook-ja-JP", "handbook-ru-RU", "handbook-zh-CN")
LEAST_BYTES, MOST_BYTES = 1_000, 40_000
GOOD = 0.55
"""Share of the bytes that are the clean documents, with what the page adds to them."""
PAGES = {
    "exact copies": 0.12,
    "near copies": 0.10,
    "other languages": 0.10,
    "machine lists": 0.05,
    "word salad": 0.04,
    "fragments": 0.04,
}
"""Share of the bytes of pages that should not be there."""
MARKS = {"menus": 0.5, "HTML": 0.08, "mojibake": 0.08, "repeated lines": 0.05}
"""Share of the good pages on which something was left by the site, by its extraction or by its software."""
FEW = 4
"""So many pages make half of the exact copies: tens of each."""
EDITED = 0.03
"""Share of the words that differ in a near copy, beside another site's menu."""
GRAM, MOST_SHARED = 13, 0.1
"""A held-out document shares at most this part of its runs of 13 words with all training text, and the reverse."""
WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Page:
    """A document and what it is."""

    text: str
    source: str
    """Of a clean document, where it is from; of a page, its kind."""
    marks: tuple[str, ...] = ()
    """What was left on it."""

    @property
    def size(self) -> int:
        """Bytes of UTF-8."""
        return len(self.text.encode())


@dataclass(slots=True)
class Corpus:
    """The same documents clean and dirty, and the documents that neither has."""

    clean: list[Page] = field(default_factory=list)
    raw: list[Page] = field(default_factory=list)
    held_out: list[Page] = field(default_factory=list)


def _read(source: str) -> Iterator[Page]:
    with gzip.open(DATA / f"{source}.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            page = Page(json.loads(line)["text"], source)
            if LEAST_BYTES <= page.size <= MOST_BYTES:
                yield page


def _english(page: Page) -> float:
    """How many of the words are among the most frequent ones of English: about a sixth in prose."""
    words = WORDS.findall(page.text.lower())
    return sum(word in ("the", "of", "to", "is", "and") for word in words) / max(len(words), 1)


def _clean(source: str) -> list[Page]:
    """Documents in English and nearly all ASCII: the kernel's documentation has translations too."""
    return [page for page in _read(source) if len(page.text) >= 0.97 * page.size and _english(page) >= 0.05]


def _foreign(source: str) -> list[Page]:
    """Documents in another language: many were never translated, or by half."""
    return [page for page in _read(source) if _english(page) < 0.05]


def _by_hash(pages: list[Page]) -> list[Page]:
    """In an order that is random but always the same; equal texts once."""
    keyed = {xxhash.xxh3_64_intdigest(page.text.encode()): page for page in pages}
    return [keyed[key] for key in sorted(keyed)]


def _up_to(pages: list[Page], size: float) -> tuple[list[Page], list[Page]]:
    """(pages of so many bytes, the others)."""
    count = int(np.searchsorted(np.cumsum([page.size for page in pages]), size)) + 1
    return pages[:count], pages[count:]


def _grams(text: str) -> set[int]:
    words = WORDS.findall(text.lower())
    return {hash(tuple(words[place : place + GRAM])) for place in range(len(words) - GRAM + 1)}


def _shared(pages: list[Page], others: list[Page]) -> list[float]:
    """The part of each page's runs of words that stands in the others; pages of no such runs share all."""
    elsewhere = set[int]().union(*(_grams(page.text) for page in others))
    grams = [_grams(page.text) for page in pages]
    return [len(each & elsewhere) / len(each) if each else 1.0 for each in grams]


def _apart(pages: list[Page], others: list[Page]) -> list[Page]:
    """Those pages that share little with the others."""
    return [page for page, part in zip(pages, _shared(pages, others), strict=True) if part <= MOST_SHARED]


def make_corpus(clean_bytes: int, held_out_bytes: int, seed: int = 0) -> Corpus:
    """Clean documents, their dirty form, and documents held out of both before anything else was done."""
    pages = _by_hash([page for source in ENGLISH for page in _clean(source)])
    held_out, rest = _up_to(pages, 2 * held_out_bytes)
    foreign = _apart(_by_hash([page for source in OTHERS for page in _foreign(source)]), held_out)
    rest = _apart(rest, held_out)
    clean, _ = _up_to(rest, clean_bytes)
    held_out, _ = _up_to(_apart(held_out, [*clean, *foreign]), held_out_bytes)
    return Corpus(clean, _Dirt(clean, foreign, random.Random(seed)).pages(), held_out)


class _Dirt:
    """Pages of all kinds."""

    def __init__(self, clean: list[Page], foreign: list[Page], draw: random.Random) -> None:
        self._clean, self._foreign, self._draw = clean, foreign, draw
        self._sites = [_Site(f"site{number}", draw) for number in range(60)]
        self._words = [word for page in clean[:300] for word in page.text.split()]
        self._rng = np.random.default_rng(draw.randrange(2**32))

    def pages(self) -> list[Page]:
        """The raw corpus, in random order."""
        good = [self._marked(page) for page in self._clean]
        total = sum(page.size for page in good) / GOOD
        few = self._draw.sample(good, FEW)
        foreign = iter(self._foreign)
        kinds: dict[str, Callable[[], str]] = {
            "exact copies": lambda: self._draw.choice(few if self._draw.random() < 0.5 else good).text,
            "near copies": lambda: self._near_copy(self._draw.choice(self._clean)),
            "other languages": lambda: next(foreign).text,
            "machine lists": self._machine_list,
            "word salad": self._word_salad,
            "fragments": self._fragment,
        }
        made = list(good)
        for kind, share in PAGES.items():
            size = 0
            while size < share * total:
                made.append(Page(kinds[kind](), kind))
                size += made[-1].size
        self._draw.shuffle(made)
        return made

    def _marked(self, page: Page) -> Page:
        """A clean document as its site shows it and a crawler reads it."""
        marks: list[str] = []
        text = page.text
        edits = {"repeated lines": self._repeat, "menus": self._framed, "HTML": self._tagged, "mojibake": _misread}
        for mark, edit in edits.items():
            changed = edit(text) if self._draw.random() < MARKS[mark] else text
            marks += [mark] * (changed != text)
            text = changed
        return Page(text, "good pages", tuple(marks))

    def _near_copy(self, page: Page) -> str:
        return self._framed(edited(page.text, EDITED, self._rng))

    def _framed(self, text: str) -> str:
        return self._draw.choice(self._sites).framed(text, self._draw)

    def _repeat(self, text: str) -> str:
        """One line many times over, as broken templates write it."""
        lines = text.split("\n")
        place = self._draw.randrange(len(lines))
        line = lines[place] or "Loading..."
        return "\n".join([*lines[:place], *[line] * self._draw.randint(10, 30), *lines[place:]])

    def _tagged(self, text: str) -> str:
        """Markup that the extraction left, of blocks or only entities."""
        text = html.escape(text)
        if self._draw.random() < 0.5:
            return text.replace("  ", "&nbsp; ")
        return "".join(f'<p class="text">{part}</p><br />\n' for part in text.split("\n\n"))

    def _machine_list(self) -> str:
        """Goods, requests or tags."""
        row = self._draw.choice([self._goods, self._request, self._tags])
        return "\n".join(row(number) for number in range(self._draw.randint(40, 300)))

    def _goods(self, number: int) -> str:
        name, price = self._draw.choice(self._words)[:12], self._draw.randrange(99_999) / 100
        return f"{number:05d}  {name}-{self._draw.randrange(9999)}  {price} EUR"

    def _request(self, number: int) -> str:
        draw = self._draw
        return f"2019-{draw.randint(1, 12):02d}-03 12:{number % 60:02d} GET /{draw.randbytes(6).hex()} 200"

    def _tags(self, number: int) -> str:
        return " | ".join(word[:15] for word in self._draw.choices(self._words, k=3 + number % 7))

    def _word_salad(self) -> str:
        """Words as often as in real text, in no order."""
        sentences = [self._draw.choices(self._words, k=self._draw.randint(5, 25)) for _ in range(60)]
        return "\n".join(" ".join(words) + "." for words in sentences)

    def _fragment(self) -> str:
        """What a page of results shows of a document, cut anywhere."""
        text = self._draw.choice(self._clean).text
        first, length = self._draw.randrange(len(text) // 2), self._draw.randint(80, 400)
        return text[first : first + length] + "..."


def _misread(text: str) -> str:
    """UTF-8 read as cp1252; what cp1252 does not have is read as Latin-1."""
    return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in text.encode())


HEADS = (
    "Skip to content",
    "Home | Products | Services | About us | Contact",
    "Home > Documentation > {site}",
    "Log in  Register  My account",
    "Search {site}...",
    "Follow us on Facebook, Twitter and YouTube",
    "We use cookies to give you the best experience on {site}. Accept all / Settings",
    "Menu",
    "{site} - your place for knowledge",
    "Read our privacy policy",
)
FEET = (
    "Copyright 2019 {site} Ltd. All rights reserved. Terms of use - Privacy - Imprint",
    "Share this page: Facebook Twitter LinkedIn Reddit E-mail",
    "Subscribe to our newsletter and never miss an update from {site}",
    "Was this page helpful? Yes No",
    "Leave a comment",
    "You must be logged in to post a comment.",
    "Previous page  Next page",
    "You may also like: the ten best tools of the year, what our readers say, how to get started",
    "Powered by {site} Content Engine 4.2",
    "Page generated in {n} ms",
    "{n} people found this useful",
)


class _Site:
    """A site shows each document between the same lines."""

    def __init__(self, name: str, draw: random.Random) -> None:
        self._name = f"{name}.example"
        self._head = draw.sample(HEADS, draw.randint(3, 7))
        self._foot = draw.sample(FEET, draw.randint(3, 7))

    def framed(self, text: str, draw: random.Random) -> str:
        """The page."""
        head, foot = (
            "\n".join(line.format(site=self._name, n=draw.randint(2, 900)) for line in lines)
            for lines in (self._head, self._foot)
        )
        return f"{head}\n\n{text}\n\n{foot}\n"
