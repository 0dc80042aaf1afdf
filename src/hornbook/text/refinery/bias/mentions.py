"""Who is mentioned with what: mentions of groups of people, and those that have an attribute nearby.

Terms are whole words; the longest match wins, and matches do not overlap. Apostrophes separate words: `nurse's` is
`nurse` and `s`, `l'homme` is `l` and `homme`. A sentence ends at a terminal mark before whitespace (beyond ASCII, at
any) and at an empty line, not at the end of a line, because much text is wrapped.
"""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from hornbook.errors import UsageError
from hornbook.files.file_records import first_problem
from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import pack
from hornbook.settings.fields import Config
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Columns, Decision, Measurer
from hornbook.text.refinery.words.characters import SPACE, decode, kinds, sentence_terminals, table_of
from hornbook.text.refinery.words.words import HashedWords, hashed_words

MOST_COLUMNS = 500
"""Counts stored of each document: one for each group, and one for each group with each attribute."""
_LOW_BITS = np.uint64(0xFFFF)

TermLists = dict[Annotated[str, Field(pattern=r"^\w[\w -]*$")], Annotated[list[str], Field(min_length=1)]]


class MentionTerms(Config):
    """A file of terms: groups of people, and attributes that may occur near them."""

    groups: TermLists = Field(min_length=2)
    attributes: TermLists = Field(min_length=1)


def read_terms(path: Path) -> MentionTerms:
    """Read and check a file. Raises UsageError that names file and key."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        terms = MentionTerms.model_validate(json.loads(text) if path.suffix == ".json" else tomllib.loads(text))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a file, or en, de, fr or es for ours") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except ValidationError as error:
        remedy = 'write tables `groups` and `attributes` of NAME = ["term", "two words"]'
        raise UsageError(f"{path}: {first_problem(error)}: {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    groups, attributes = len(terms.groups), len(terms.attributes)
    if (count := groups * (1 + attributes)) > MOST_COLUMNS:
        raise UsageError(
            f"{path}: {groups} groups with {attributes} attributes are {count} counts per document, "
            f"more than {MOST_COLUMNS}: divide them among files, for steps with names of their own"
        )
    return terms


class TermTable(NamedTuple):
    """All terms by their first word, the longest first. Classes are the groups, then the attributes."""

    maybe: np.ndarray
    """bool [65536]: whether a first word's hash has these low bits; most words are rejected here."""
    keys: np.ndarray
    """uint64: hashes of first words, sorted, each once."""
    firsts: np.ndarray
    """int64 [keys + 1]: the first term of each."""
    bounds: np.ndarray
    """int64 [terms + 1]: the first word of each term in `words`."""
    words: np.ndarray
    """uint64: words of all terms."""
    classes: np.ndarray
    """int64 [terms]."""


def term_table(path: Path, terms: MentionTerms, definition: str) -> TermTable:
    """The table of terms. Raises UsageError where a term has no word, or is in two lists."""
    owners: dict[tuple[int, ...], tuple[int, str]] = {}
    lists = [(f"{table}.{name}", entries) for table, names in terms for name, entries in names.items()]
    for number, (key, entries) in enumerate(lists):
        found = hashed_words(map(_parted, entries), definition, plain=True)
        for entry, hashes in zip(entries, np.split(found.hashes, found.firsts[1:-1]), strict=True):
            words = tuple(hashes.tolist())
            if not words:
                raise UsageError(f"{path}: {key}: {entry!r} has no word to look for")
            if owners.setdefault(words, (number, key))[0] != number:
                raise UsageError(f"{path}: {entry!r} is in {owners[words][1]} and in {key}: leave it in one")
    ordered = sorted(owners, key=lambda words: (words[0], -len(words), words))
    starters = np.array([words[0] for words in ordered], np.uint64)
    keys, firsts = np.unique(starters, return_index=True)
    maybe = np.zeros(int(_LOW_BITS) + 1, bool)
    maybe[keys & _LOW_BITS] = True
    return TermTable(
        maybe,
        keys,
        np.append(firsts, len(ordered)).astype(np.int64),
        np.cumsum([0, *map(len, ordered)]),
        np.array([word for words in ordered for word in words], np.uint64),
        np.array([owners[words][0] for words in ordered], np.int64),
    )


def _parted(text: str) -> str:
    return text.replace("'", " ").replace("\u2019", " ")


class MentionCounts(Measurer):
    """Measures how often each group is mentioned, then how often with each attribute nearby."""

    def __init__(self, config: Any) -> None:
        self.name, self._definition, self._window = config.label, config.words, config.window
        terms = read_terms(config.path)
        self.groups, self.attributes = tuple(terms.groups), tuple(terms.attributes)
        self._table = term_table(config.path, terms, config.words)
        pairs = [f"{group}.{attribute}" for group in self.groups for attribute in self.attributes]
        self.columns = dict.fromkeys([*self.groups, *pairs], "int64")
        self.full_names = [f"{self.name}.{column}" for column in self.columns]

    def measure(self, documents: Sequence[Document]) -> Columns:
        """Every count of every document."""
        texts = [_parted(document.text).lower() for document in documents]
        words = hashed_words(texts, self._definition, plain=True)
        mentions, classes = np.empty((2, len(words.hashes)), np.int64)
        firsts = np.zeros(len(texts) + 1, np.int64)
        _find(words.hashes, words.firsts, self._table, mentions, classes, firsts)
        mentions = mentions[: firsts[-1]]
        by_sentence = self._window == "sentence"
        places = _sentences_of(words, texts)[mentions] if by_sentence else mentions
        rows = np.zeros((len(texts), len(self.columns)), np.int64)
        reach = 0 if by_sentence else self._window
        _count(places, classes, firsts, reach, len(self.groups), len(self.attributes), rows)
        return {name: rows[:, place] for place, name in enumerate(self.columns)}


@compiled
def _find(words, texts, table, places, classes, found):
    """Write the mentions of each text: the index of the first word among all words, and the class; fills `found`."""
    maybe, keys, firsts, bounds, term_words, term_classes = table
    count = 0
    for text in range(len(texts) - 1):
        place, end = texts[text], texts[text + 1]
        while place < end:
            width = 1
            if maybe[words[place] & _LOW_BITS]:
                key = np.searchsorted(keys, words[place])
                if key < len(keys) and keys[key] == words[place]:
                    term = _longest(words, place, end, firsts[key], firsts[key + 1], bounds, term_words)
                    if term >= 0:
                        places[count], classes[count] = place, term_classes[term]
                        count += 1
                        width = bounds[term + 1] - bounds[term]
            place += width
        found[text + 1] = count


@compiled
def _longest(words, place, end, first, last, bounds, term_words):
    """The first of the terms `first`..`last` that matches at `place`, or -1."""
    for term in range(first, last):
        size = bounds[term + 1] - bounds[term]
        same = place + size <= end
        at = 1
        while same and at < size:
            same = words[place + at] == term_words[bounds[term] + at]
            at += 1
        if same:
            return term
    return -1


@compiled
def _count(places, classes, firsts, reach, groups, attributes, rows):
    """Fill rows [texts, groups + groups * attributes]: a mention counts for each attribute within reach."""
    for text in range(len(rows)):
        begin, end = firsts[text], firsts[text + 1]
        near = np.zeros(attributes, np.int64)
        left = right = begin
        for i in range(begin, end):
            # `near` holds the attributes of places[left:right], which are those within reach of mention i.
            while right < end and places[right] <= places[i] + reach:
                if classes[right] >= groups:
                    near[classes[right] - groups] += 1
                right += 1
            while places[left] < places[i] - reach:
                if classes[left] >= groups:
                    near[classes[left] - groups] -= 1
                left += 1
            if classes[i] < groups:
                rows[text, classes[i]] += 1
                for attribute in range(attributes):
                    rows[text, groups + classes[i] * attributes + attribute] += near[attribute] > 0


def _sentences_of(words: HashedWords, texts: Sequence[str]) -> np.ndarray:
    """int64 [words]: the number of each word's sentence."""
    data, _ = pack(texts)
    numbers = np.zeros(len(words.starts), np.int64)
    _number_sentences(data, words.starts, words.ends, kinds(), table_of(sentence_terminals()), numbers)
    return numbers


@compiled
def _number_sentences(data, starts, ends, kind, terminal, numbers):
    for i in range(1, len(starts)):
        numbers[i] = numbers[i - 1] + _ends_sentence(data, ends[i - 1], starts[i], kind, terminal)


@compiled
def _ends_sentence(data, place, end, kind, terminal):
    """Whether the text between two words ends a sentence."""
    marked, feeds = False, 0
    while place < end:
        code, width = decode(data, place, end)
        if kind[code] & SPACE:
            feeds += code == 0x0A
            if marked or feeds == 2:
                return True
        else:
            feeds = 0
            if terminal[code]:
                if code >= 0x80:
                    return True
                marked = True
        place += width
    return False


class Mentions(Decision):
    """Counts mentions, and keeps every document."""

    fixed = ("window",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        counts = MentionCounts(config)
        self.measurers = (counts,)
        self.needs = (counts.full_names[0],)
