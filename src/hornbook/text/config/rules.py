"""Configuration of the published rules of quality: Gopher's, C4's and FineWeb's, with their thresholds as defaults.

Gopher: Rae et al. 2021, https://arxiv.org/abs/2112.11446, section A.1.1 and Table A1. C4: Raffel et al. 2020,
https://arxiv.org/abs/1910.10683, section 2.2. mC4: Xue et al. 2021, https://arxiv.org/abs/2010.11934, section 3.1.
FineWeb: Penedo et al. 2024, https://arxiv.org/abs/2406.17557, section 3.5. Where a paper leaves a detail open, it is
as in datatrove 0.10.1. A threshold of null turns its rule off.
"""

from typing import Annotated, Literal

from pydantic import Field

from hornbook.settings.fields import Count
from hornbook.text.config.step import DecisionConfig, EditConfig, Words

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

Share = Annotated[float, Field(ge=0)]
Number = Annotated[Count, Field(ge=0)]


class CountsWords(DecisionConfig):
    """Settings of decisions that count words."""

    words: Words = "whitespace"
    """Definition of a word: runs without whitespace; runs of letters and digits; these, with each ideograph alone."""


class GopherQualityConfig(CountsWords):
    """Decision: Gopher's ten rules of quality, in the order of these keys."""

    kind: Literal["gopher_quality"] = "gopher_quality"
    step = "quality.rules:Rules"
    min_words: Number | None = 50
    """Least number of words that are more than symbols."""
    max_words: Number | None = 100_000
    """Most of these words."""
    min_word_length: Share | None = 3.0
    """Least mean length of these words, in characters."""
    max_word_length: Share | None = 10.0
    """Greatest mean length."""
    max_hashes: Share | None = 0.1
    """Most hash signs per word."""
    max_ellipses: Share | None = 0.1
    """Most ellipses per word."""
    max_bullet_lines: Share | None = 0.9
    """Largest share of lines that begin with a bullet or hyphen."""
    max_ellipsis_lines: Share | None = 0.3
    """Largest share of lines that end in an ellipsis."""
    min_alphabetic_words: Share | None = 0.8
    """Least share of words with a letter."""
    min_stop_words: Number | None = 2
    """Least number of different stop words of one language."""
    stop_words: dict[str, list[str]] = Field(
        default_factory=lambda: {"en": list(STOP_WORDS)}, min_length=1, max_length=64
    )
    """Language -> its stop words, in the case they are written in; name every language to keep."""


class GopherRepetitionConfig(CountsWords):
    """Decision: Gopher's thirteen rules of repetition, in the order of these keys; shares are of all characters."""

    kind: Literal["gopher_repetition"] = "gopher_repetition"
    step = "quality.rules:Rules"
    max_duplicate_paragraphs: Share | None = 0.3
    """Largest share of paragraphs (between empty lines) that are repeated."""
    max_duplicate_paragraph_characters: Share | None = 0.2
    """Largest share of characters in repeated paragraphs."""
    max_duplicate_lines: Share | None = 0.3
    """Largest share of lines that are repeated."""
    max_duplicate_line_characters: Share | None = 0.2
    """Largest share of characters in repeated lines."""
    max_top_2_gram: Share | None = 0.2
    """Largest share of characters in the most frequent pair of words."""
    max_top_3_gram: Share | None = 0.18
    """In the most frequent 3 words."""
    max_top_4_gram: Share | None = 0.16
    """In the most frequent 4 words."""
    max_duplicate_5_grams: Share | None = 0.15
    """Largest share of characters in repeated runs of 5 words."""
    max_duplicate_6_grams: Share | None = 0.14
    """In 6 words."""
    max_duplicate_7_grams: Share | None = 0.13
    """In 7 words."""
    max_duplicate_8_grams: Share | None = 0.12
    """In 8 words."""
    max_duplicate_9_grams: Share | None = 0.11
    """In 9 words."""
    max_duplicate_10_grams: Share | None = 0.1
    """In 10 words."""


class C4LinesConfig(EditConfig):
    """Edit: C4's rules for lines. The other lines are trimmed and joined; `c4` decides about the document.

    Lines with `lorem ipsum` or a curly bracket are kept, because `c4` drops documents for them.
    """

    kind: Literal["c4_lines"] = "c4_lines"
    step = "quality.rules:C4Lines"
    max_word_length: Number | None = 1000
    """Lines with a longer word are removed."""
    citations: bool = True
    """Remove `[1]`, `[edit]` and `[citation needed]` from lines."""
    endings: str = ".?!\"'"
    """Lines that end in none of these, or in `...`, are removed; "" keeps all."""
    min_words: Number = 3
    """Lines with fewer words between whitespace are removed."""
    javascript: bool = True
    """Remove lines that mention JavaScript."""
    policies: list[str] = Field(default_factory=lambda: list(POLICY))
    """Lines with one of these phrases (in lower case) are removed."""


class C4Config(DecisionConfig):
    """Decision: C4's rules for documents, in the order of these keys; put `c4_lines` among the edits."""

    kind: Literal["c4"] = "c4"
    step = "quality.rules:C4"
    lorem_ipsum: bool = True
    """Drop documents with `lorem ipsum`, a filler."""
    curly_bracket: bool = True
    """Drop documents with `{`, which is code more often than prose."""
    min_sentences: Number | None = 5
    """Least number of sentences; a line with a word is at least one."""
    terminals: str = ""
    """Characters that end a sentence; by default those of all scripts."""


class MC4Config(DecisionConfig):
    """Decision: mC4's rule that replaces C4's lines in languages without its punctuation."""

    kind: Literal["mc4"] = "mc4"
    step = "quality.rules:Rules"
    min_line_length: Number | None = 200
    """Three lines must have at least this many characters."""


class FineWebConfig(CountsWords):
    """Decision: FineWeb's additional rules, in the order of these keys; empty lines are ignored."""

    kind: Literal["fineweb"] = "fineweb"
    step = "quality.rules:Rules"
    min_terminal_lines: Share | None = 0.12
    """Least share of lines that end in a terminal mark."""
    max_short_lines: Share | None = 0.67
    """Largest share of short lines."""
    max_duplicate_characters: Share | None = 0.01
    """Largest share of characters in repeated lines."""
    max_newlines: Share | None = 0.3
    """Most newlines per word."""
    terminals: str = ""
    """Terminal marks; by default those of all scripts."""
    short_line: Number = 30
    """Most characters of a short line."""
