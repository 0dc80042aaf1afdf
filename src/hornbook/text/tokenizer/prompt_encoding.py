"""Encode what a model is asked about: texts and pairs, words, questions with a context.

The tokens are those that `tokenize` makes of labelled texts; a text that is too long is cut, or read in windows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.text.tokenizer.tokenizer import Tokenizer

Span = tuple[int, int]
"""Characters [start, end)."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text or a pair as model input."""

    tokens: list[int]
    types: list[int]
    """Of each token: 0, or 1 from the second text on (BERT's token types)."""
    truncated: bool
    """Whether the text was cut."""


@dataclass(frozen=True, slots=True)
class WordWindow:
    """Some words as model input."""

    tokens: list[int]
    positions: dict[int, int]
    """Number of a word -> position of its first piece among the tokens, for the words that this window answers for."""


@dataclass(frozen=True, slots=True)
class Window:
    """A question and a part of its context as model input."""

    tokens: list[int]
    types: list[int]
    """As of `EncodedText`."""
    spans: list[Span | None]
    """Of each token, its span in the context; None for tokens outside of it."""


def pack_pair(tokenizer: Tokenizer, parts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """(tokens, types) of one text or several as one row: delimiter, texts with end tokens between, end token.

    parts: token ids of each text. Types are 0, and 1 from the second text on (BERT's). As in stored documents the end
    token stands last only where it differs from the delimiter. Between two texts it stands as often as in the
    tokenizer's own template of pairs (BERT: `[CLS] a [SEP] b [SEP]`; RoBERTa: twice).
    """
    tokens: list[int] = []
    starts: list[int] = []
    for part in parts:
        tokens += [tokenizer.end_id] * tokenizer.ends_between if starts else [tokenizer.delimiter_id]
        starts.append(len(tokens))
        tokens += part
    if tokenizer.end_id != tokenizer.delimiter_id:
        tokens.append(tokenizer.end_id)
    first = starts[1] if len(starts) > 1 else len(tokens)
    return tokens, [0] * first + [1] * (len(tokens) - first)


def encode_text(tokenizer: Tokenizer, text: str, pair: str | None = None, longest: int | None = None) -> EncodedText:
    """A text, or two; cut to `longest` tokens at the end, of two texts the longer one first."""
    parts = [tokenizer.encode(each) for each in (text, pair) if each is not None]
    whole = len(pack_pair(tokenizer, parts)[0])
    excess = 0 if longest is None else max(whole - longest, 0)
    for _ in range(min(excess, sum(map(len, parts)))):
        max(reversed(parts), key=len).pop()
    return EncodedText(*pack_pair(tokenizer, parts), truncated=excess > 0)


def encode_words(
    tokenizer: Tokenizer, words: Sequence[str], longest: int | None = None, stride: int = 128
) -> Iterator[WordWindow]:
    """The words as one text with blanks between, in windows of at most `longest` tokens that share `stride` of them.

    Each word belongs to the window that shows most on both sides of it. A word of characters that the tokenizer drops
    has no token, and is in none.
    """
    ((ids, spans),) = tokenizer.encode_offsets([" ".join(words)])
    positions = dict(_first_pieces(words, spans))
    parts = list(_windows(len(ids), None if longest is None else longest - len(pack_pair(tokenizer, [[]])[0]), stride))
    homes: list[dict[int, int]] = [{} for _ in parts]
    for word, position in positions.items():
        inside = [number for number, part in enumerate(parts) if position in part]
        home = max(inside, key=lambda number: min(position - parts[number].start, parts[number].stop - position))
        homes[home][word] = 1 + position - parts[home].start
    for part, home in zip(parts, homes, strict=True):
        yield WordWindow(pack_pair(tokenizer, [ids[part.start : part.stop]])[0], home)


def _first_pieces(words: Sequence[str], spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """(number of a word, number of its first piece) of the words that have one."""
    end = piece = 0
    for number, word in enumerate(words):
        start, end = end, end + len(word) + 1
        # A piece may start with the blank before its word, or span several words: it belongs to the word it ends in.
        while piece < len(spans) and spans[piece][1] <= start:
            piece += 1
        if piece < len(spans) and spans[piece][1] < end:
            yield number, piece


def encode_question(
    tokenizer: Tokenizer, question: str, context: str, longest: int | None = None, stride: int = 128
) -> Iterator[Window]:
    """Windows of at most `longest` tokens: the whole question, then a part of the context.

    Neighbours share `stride` tokens of the context, so that an answer as long as that is whole in one of them. Raises
    UsageError where the question leaves no room.
    """
    (question_ids, _), (ids, spans) = tokenizer.encode_offsets([question, context])
    limit = None if longest is None else longest - len(pack_pair(tokenizer, [question_ids, []])[0])
    if limit is not None and limit < 1:
        raise UsageError(f"a question of {len(question_ids)} tokens leaves no room for a context within {longest}")
    before = 1 + len(question_ids) + tokenizer.ends_between
    for part in _windows(len(ids), limit, stride):
        tokens, types = pack_pair(tokenizer, [question_ids, ids[part.start : part.stop]])
        known = [*[None] * before, *spans[part.start : part.stop]]
        yield Window(tokens, types, [*known, *[None] * (len(tokens) - len(known))])


def _windows(count: int, limit: int | None, stride: int) -> Iterator[range]:
    """Ranges of at most `limit` that cover `count` and share `stride`, or half of themselves; at least one."""
    limit = count if limit is None else limit
    start = 0
    while start + limit < count:
        yield range(start, start + limit)
        start += max(limit - stride, limit // 2, 1)
    yield range(start, count)
