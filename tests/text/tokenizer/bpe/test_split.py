"""The kernel splits as the regex engine of the tokenizers library does, whatever the text."""

import itertools

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from hornbook.kernels.compiled import compiled
from hornbook.text.tokenizer.bpe.split import LETTER, NEWLINE, NUMBER, WHITESPACE, character_tables, word_end
from hornbook.text.tokenizer.bpe.tables import PATTERN, STYLES

PARTS = [
    *("'s", "'S", "'ll", "'lL", "'Ve", "'re", "'l", "'v", "'", "''", "'\u017f", "'m1", "'dx", "\u2019s"),
    *(" ", "  ", "\n", "\r", "\r\n", "\t", "\u3000", "\xa0", "\x85", "\u2028", "\x0b", "\x1c", "\x00", "\u200b"),
    *("a", "Word", "\u00e9", "e\u0301", "\u0301", "\u6570", "\u0627\u0644", "\U00010400", "\u02b0", "\u2160", "\u00bd"),
    *("1", "12345", "\u0663", "\U0001d7d8", "_", "-", "--", "(", ".", "!?", "\u3002", "\U0001f600", "\u200d", "\ue000"),
    *("a_b", " (", " '", "\t(", " \n ", "\n\n  x", "\uffff", "\U000e0001", "\U0010ffff"),
]
TEXT = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=4)), max_size=14).map("".join)


@compiled
def split_words(data, start, end, digits, pages, kinds):
    """The ends of all pre-tokens of a text, int64."""
    ends = np.empty(end - start, np.int64)
    count = 0
    while start < end:
        start = word_end(data, start, end, digits, pages, kinds)
        ends[count] = start
        count += 1
    return ends[:count]


def ours(text: str, pattern: str) -> list[str]:
    data = np.frombuffer(text.encode() + bytes(16), np.uint8)
    end = len(data) - 16
    ends = [0, *split_words(data, 0, end, STYLES[pattern], *character_tables())]
    return [bytes(data[start:end]).decode() for start, end in itertools.pairwise(ends)]


def theirs(text: str, pattern: str) -> list[str]:
    splitter = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_words_are_those_of_the_regex(text: str):
    for pattern in STYLES:
        assert ours(text, pattern) == theirs(text, pattern)


def test_the_regex_of_gpt2_is_that_of_the_byte_level_pre_tokenizer():
    text = "".join(PARTS) + " it's  here\n\n 12345 '\u017f"
    library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)
    pattern = next(pattern for pattern, digits in STYLES.items() if not digits)
    words = ours(text, pattern)
    assert words == [text[start:end] for _, (start, end) in library]


def characters(pattern: str) -> np.ndarray:
    """Whether the library takes each code point for one that matches, bool [0x110000]; surrogates do not."""
    points = np.array([*range(0xD800), *range(0xE000, 0x110000)])
    splitter = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    matches = np.zeros(0x110000, bool)
    matches[points] = True
    for _, (start, end) in splitter.pre_tokenize_str("".join(map(chr, points))):
        matches[points[start:end]] = False
    return matches


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [(r"\p{L}+", {LETTER}), (r"\p{N}+", {NUMBER}), (r"\s+", {WHITESPACE, NEWLINE}), (r"[\r\n]+", {NEWLINE})],
)
def test_every_code_point_is_of_the_kind_it_has_in_the_library(pattern: str, kinds: set[int]):
    pages, table = character_tables()
    points = np.arange(0x110000)
    assert (np.isin(table[pages[points >> 8] + (points & 0xFF)], list(kinds)) == characters(pattern)).all()


def test_every_code_point_among_others_is_split_as_the_library_does():
    """Each between letters, after a quote, before a number, in a text of its own block."""
    for block in [*range(0, 0x3200, 0x80), 0xA640, 0xFB00, 0xFE20, 0xFF00, 0x10400, 0x1D7C0, 0x1F600, 0x10FF80]:
        text = "".join(f"x{chr(c)}y '{chr(c)}z {chr(c)} 1{chr(c)}2\n" for c in range(block, block + 0x80))
        assert ours(text, PATTERN) == theirs(text, PATTERN)


def test_another_engine_agrees_on_ordinary_text():
    text = "The model's page: x = 12345;\r\n\r\n\tdef f(x):\n    return 'yes'  # WE'LL see\n" * 3
    assert ours(text, PATTERN) == regex.findall(PATTERN, text)
