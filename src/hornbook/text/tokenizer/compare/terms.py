"""Words of a domain that a tokenizer breaks: candidates for new tokens, and what they would save."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hornbook.text.tokenizer.tokenizer import Tokenizer

WORD = re.compile(r" ?[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
"""Letters, joined by apostrophes and hyphens, with the blank before them."""


@dataclass(frozen=True, slots=True)
class Term:
    """A word of the domain."""

    text: str
    """With a blank before it where that saves more: a token of the word alone leaves the blank a token of its own."""
    count: int
    """Occurrences in the domain's texts, with and without a blank."""
    pieces: int
    """Tokens that `text` takes now."""
    saved: int
    """Tokens that the domain's texts would be shorter with a token for it."""
    keyness: float
    """Dunning's log-likelihood ratio (1993) of its count against the general texts; 0 without those."""


def mine_terms(
    texts: Iterable[str], tokenizer: Tokenizer, general: Iterable[str] = (), *, top: int = 100, least: int = 5
) -> list[Term]:
    """The words that would save most tokens, spelled as they would save most.

    least: occurrences below which a word is not considered. With general texts, only words that stand more often in
    the domain than there. What is a token already is none.
    """
    spelled, other = (Counter(word for text in each for word in WORD.findall(text)) for each in (texts, general))
    domain, elsewhere = _bare(spelled), _bare(other)
    size, other_size = domain.total(), elsewhere.total()
    terms = []
    for word, count in domain.items():
        if count < least:
            continue
        keyness = _keyness(count, size, elsewhere[word], other_size) if other_size else 0.0
        if other_size and keyness <= 0:
            continue
        text, pieces, saved = _best_spelling(word, spelled, tokenizer)
        if saved > 0:
            terms.append(Term(text, count, pieces, saved, keyness))
    return sorted(terms, key=lambda term: (-term.saved, term.text))[:top]


def _bare(spelled: Counter[str]) -> Counter[str]:
    found = Counter[str]()
    for word, count in spelled.items():
        found[word.removeprefix(" ")] += count
    return found


def _best_spelling(word: str, spelled: Counter[str], tokenizer: Tokenizer) -> tuple[str, int, int]:
    """The spelling whose token saves most, its pieces now, and the tokens saved."""
    after_blank, alone = f" {word}", word
    pieces, pieces_alone = len(tokenizer.encode(after_blank)), len(tokenizer.encode(alone))
    with_blank = (spelled[after_blank] * (pieces - 1), after_blank, pieces)
    # After a blank a token of the word alone leaves two tokens: the blank and itself.
    without = (spelled[after_blank] * (pieces - 2) + spelled[alone] * (pieces_alone - 1), alone, pieces_alone)
    saved, text, count = max(with_blank, without)
    return text, count, saved


def _keyness(count: int, size: int, other: int, other_size: int) -> float:
    """Signed log-likelihood ratio: positive where the word is more frequent in the domain."""
    rate = (count + other) / (size + other_size)
    ratio = 2 * (_likelihood_term(count, size * rate) + _likelihood_term(other, other_size * rate))
    return ratio if count / size > other / other_size else -ratio


def _likelihood_term(count: int, expected: float) -> float:
    return count * math.log(count / expected) if count else 0.0
