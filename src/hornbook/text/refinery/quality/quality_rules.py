"""Gopher's, C4's, mC4's and FineWeb's rules for documents (`hornbook.text.config.rules` names the papers)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hornbook.text.refinery.quality.rules import Rule, Rules
from hornbook.text.refinery.quality.statistics import Settings
from hornbook.text.refinery.step import Columns


class GopherQuality(Rules):
    """Is it prose, by its words and lines?"""

    rules = (
        Rule("min_words", "Gopher: too few words", "plain_words"),
        Rule("max_words", "Gopher: too many words", "plain_words"),
        Rule("min_word_length", "Gopher: words too short", "plain_word_characters", "plain_words"),
        Rule("max_word_length", "Gopher: words too long", "plain_word_characters", "plain_words"),
        Rule("max_hashes", "Gopher: too many hash signs", "hashes", "words"),
        Rule("max_ellipses", "Gopher: too many ellipses", "ellipses", "words"),
        Rule("max_bullet_lines", "Gopher: too many bullet points", "bullet_lines", "lines"),
        Rule("max_ellipsis_lines", "Gopher: too many lines that break off", "ellipsis_lines", "lines"),
        Rule("min_alphabetic_words", "Gopher: too few words with letters", "alphabetic_words", "words"),
        Rule("min_stop_words", "Gopher: too few stop words", "stop_words"),
    )

    def settings(self) -> Settings:
        """With its stop words."""
        languages = tuple(tuple(words) for words in self.config.stop_words.values())
        return Settings(words=self.config.words, stop_words=languages)


class GopherRepetition(Rules):
    """How much of it is said again?"""

    rules = (
        Rule("max_duplicate_paragraphs", "Gopher: repeated paragraphs", "duplicate_paragraphs", "paragraphs"),
        Rule(
            "max_duplicate_paragraph_characters",
            "Gopher: much text in repeated paragraphs",
            "duplicate_paragraph_characters",
            "characters",
        ),
        Rule("max_duplicate_lines", "Gopher: repeated lines", "duplicate_lines", "text_lines"),
        Rule(
            "max_duplicate_line_characters",
            "Gopher: much text in repeated lines",
            "duplicate_line_characters",
            "characters",
        ),
        *(
            Rule(
                f"max_top_{n}_gram",
                f"Gopher: the same {n} words again and again",
                f"top_{n}_gram_characters",
                "characters",
            )
            for n in (2, 3, 4)
        ),
        *(
            Rule(
                f"max_duplicate_{n}_grams",
                f"Gopher: repeated runs of {n} words",
                f"duplicate_{n}_gram_characters",
                "characters",
            )
            for n in range(5, 11)
        ),
    )


class FineWeb(Rules):
    """Are its lines sentences, or bits of a page?"""

    rules = (
        Rule("min_terminal_lines", "FineWeb: too few lines end a sentence", "terminal_lines", "visible_lines"),
        Rule("max_short_lines", "FineWeb: too many short lines", "short_lines", "visible_lines"),
        Rule(
            "max_duplicate_characters",
            "FineWeb: much text in repeated lines",
            "duplicate_visible_characters",
            "line_characters",
        ),
        Rule("max_newlines", "FineWeb: too many newlines for its words", "newlines", "words"),
    )

    def settings(self) -> Settings:
        """With its terminal marks and what a short line is."""
        config = self.config
        return Settings(words=config.words, terminals=config.terminals, short_line=config.short_line)


class MC4(Rules):
    """Has it three long lines?"""

    rules = (Rule("min_line_length", "mC4: fewer than three long lines", "third_longest_line"),)

    def settings(self) -> Settings:
        """The default: no words are counted."""
        return Settings()


class C4(Rules):
    """Is it filler or code, or too short?"""

    rules = (Rule("min_sentences", "C4: too few sentences", "sentences"),)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.reasons = ("C4: lorem ipsum", "C4: curly bracket", *self.reasons)

    def settings(self) -> Settings:
        """With what ends a sentence; words are not counted."""
        return Settings(terminals=self.config.terminals)

    def columns(self) -> Sequence[str]:
        """Also where a filler and a curly bracket are."""
        return ["lorem_ipsum_line", "curly_bracket_line", *super().columns()]

    def decide(self, columns: Columns) -> np.ndarray:
        """The filler or the bracket, whichever line comes first (a filler within one), then the number of sentences."""
        measured = self.measured(columns)
        lorem, curly = measured["lorem_ipsum_line"], measured["curly_bracket_line"]
        has_lorem, has_curly = self.config.lorem_ipsum & (lorem >= 0), self.config.curly_bracket & (curly >= 0)
        found = super().decide(columns)
        found[found != 0] = 3
        found[has_curly] = 2
        found[has_lorem & (~has_curly | (lorem <= curly))] = 1
        return found
