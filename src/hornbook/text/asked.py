"""Texts that a model is to answer about, as token ids: texts and pairs, words, questions with a context.

They become the tokens that `tokenize` makes of labelled texts, but that what is too long is cut, or read in windows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.text.joined import joined
from hornbook.text.tokenizer import Tokenizer

Span = tuple[int, int]
"""First character, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A text or a pair as the model reads it."""

    tokens: list[int]
    types: list[int]
    """Of each token: 0, or 1 in the second text and behind it (BERT's token types)."""
    truncated: bool
    """Whether something did not fit."""


@dataclass(frozen=True, slots=True)
class Window:
    """A question and a part of its context as the model reads them."""

    tokens: list[int]
    types: list[int]
    """As of `Asked`."""
    spans: list[Span | None]
    """Characters of the context that each token is made of; None: it is not of the context."""


def ask_text(tokenizer: Tokenizer, text: str, pair: str | None = None, longest: int | None = None) -> Asked:
    """A text, or two; cut to `longest` tokens at the end, of two texts the longer one first."""
    parts = [tokenizer.encode(each) for each in (text, pair) if each is not None]
    whole = len(joined(tokenizer, parts)[0])
    excess = 0 if longest is None else max(whole - longest, 0)
    for _ in range(min(excess, sum(map(len, parts)))):
        max(reversed(parts), key=len).pop()
    return Asked(*joined(tokenizer, parts), truncated=excess > 0)


def ask_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int | None]]:
    """(tokens of the words as one text with blanks between, place of each word's first token).

    A word of characters that the tokenizer drops has no token: None.
    """
    ((ids, spans),) = tokenizer.encode_offsets([" ".join(words)])
    places: list[int | None] = []
    end = number = 0
    for word in words:
        begin, end = end, end + len(word) + 1
        # A piece may begin with the blank before its word, or span several words: it is of the word it ends in.
        while number < len(spans) and spans[number][1] <= begin:
            number += 1
        inside = number < len(spans) and spans[number][1] < end
        places.append(number + 1 if inside else None)
    return joined(tokenizer, [ids])[0], places


def ask_question(
    tokenizer: Tokenizer, question: str, context: str, longest: int | None = None, stride: int = 128
) -> Iterator[Window]:
    """Windows of at most `longest` tokens over the context, each behind the whole question.

    Neighbours share `stride` tokens of the context (half a window at most), so that an answer as long as that is whole
    in one of them. Raises UsageError where the question leaves no room.
    """
    (asked, _), (ids, spans) = tokenizer.encode_offsets([question, context])
    around = len(joined(tokenizer, [asked, []])[0])
    room = len(ids) if longest is None else longest - around
    if room < 1 and ids:
        raise UsageError(f"a question of {len(asked)} tokens leaves no room for a context within {longest}")
    step, before = max(room - stride, room // 2, 1), 1 + len(asked) + tokenizer.ends_between
    begin = 0
    while True:
        tokens, types = joined(tokenizer, [asked, ids[begin : begin + room]])
        known = [*[None] * before, *spans[begin : begin + room]]
        yield Window(tokens, types, [*known, *[None] * (len(tokens) - len(known))])
        if begin + room >= len(ids):
            return
        begin += step
