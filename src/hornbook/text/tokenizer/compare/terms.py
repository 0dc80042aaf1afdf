"""Words of a domain that a tokenizer breaks: candidates for new tokens, and what they would save."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hornbook.text.tokenizer.tokenizer import Tokenizer

WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
"""Letters, joined by apostrophes and hyphens."""


@dataclass(frozen=True, slots=True)
class Term:
    """A word of the domain."""

    text: str
    count: int
    """Occurrences in the domain's texts."""
    pieces: int
    """Tokens it takes, a blank before it included."""
    saved: int
    """Tokens that the domain's texts would be shorter with a token for it."""
    keyness: float
    """Dunning's log-likelihood ratio (1993) of its count against the general texts; 0 without those."""


def mine_terms(
    texts: Iterable[str], tokenizer: Tokenizer, general: Iterable[str] = (), *, top: int = 100, least: int = 5
) -> list[Term]:
    """The words that would save most tokens, each as its commonest spelling.

    least: occurrences below which a word is not considered. With general texts, only words that stand more often in
    the domain than there.
    """
    domain, other = (Counter(word for text in each for word in WORD.findall(text)) for each in (texts, general))
    size, other_size = sum(domain.values()), sum(other.values())
    terms = []
    for word, count in domain.items():
        if count < least:
            continue
        keyness = _keyness(count, size, other[word], other_size) if other_size else 0.0
        if other_size and keyness <= 0:
            continue
        pieces = len(tokenizer.encode(f" {word}"))
        if pieces > 1:
            terms.append(Term(word, count, pieces, count * (pieces - 1), keyness))
    return sorted(terms, key=lambda term: (-term.saved, term.text))[:top]


def _keyness(count: int, size: int, other: int, other_size: int) -> float:
    """Signed log-likelihood ratio: positive where the word is more frequent in the domain."""
    rate = (count + other) / (size + other_size)
    ratio = 2 * (_likelihood_term(count, size * rate) + _likelihood_term(other, other_size * rate))
    return ratio if count / size > other / other_size else -ratio


def _likelihood_term(count: int, expected: float) -> float:
    return count * math.log(count / expected) if count else 0.0
