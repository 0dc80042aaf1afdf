"""A text cut into tokens by several tokenizers, and the tokens made visible."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, takewhile

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from hornbook.studio.explore.views import Column, Table
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.tables import PATTERN
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.tokenizer import Tokenizer

SHOWN, LINES = 600, 12
"""Most bytes of a passage; most lines of the table."""
Pieces = Sequence[bytes]


@lru_cache(maxsize=32)
def learned(text: str, vocabulary: int) -> Tokenizer:
    """A byte-level BPE that learned its merges from a text."""
    return train_bpe(BPE(vocab=vocabulary), [[text]])


@lru_cache(maxsize=8)
def _bytes_characters_words(text: str) -> tuple[Pieces, Pieces, Pieces]:
    words = Split(Regex(PATTERN), behavior="isolated").pre_tokenize_str(text)
    data = text.encode()
    characters = [character.encode() for character in text]
    return [data[i : i + 1] for i in range(len(data))], characters, [word.encode() for word, _ in words]


@lru_cache(maxsize=32)
def cut_into_tokens(text: str, learn_from: str, vocabulary: int) -> Mapping[str, Pieces]:
    """Bytes of each token, by tokenizer; joined they are the text."""
    bpe = learned(learn_from or text, vocabulary)
    ids = bpe.encode(text)
    spelled = {token: bpe.bytes_of(token) or b"" for token in set(ids)}
    single, characters, words = _bytes_characters_words(text)
    return {"bytes": single, "characters": characters, "BPE": [spelled[token] for token in ids], "words": words}


def passage_of(pieces: Pieces) -> str:
    """The first pieces with a bar between them. Bytes that are no whole character are written as `<C3>`."""
    shown = takewhile(lambda pair: pair[1] <= SHOWN, zip(pieces, accumulate(map(len, pieces)), strict=False))
    return "|".join(_readable(piece) for piece, _ in shown)


def _readable(piece: bytes) -> str:
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<{each:02X}>" for each in piece)
    marked = text.replace("\n", "\u21b5\n").replace("\t", "\u2192")
    return "".join(
        each if each.isprintable() or each == "\n" else f"<{each.encode().hex().upper()}>" for each in marked
    )


def tokens_of_lines(text: str, pieces: Mapping[str, Pieces]) -> Table:
    """Tokens of each line: a token counts in the line in which it begins."""
    lines = text.split("\n")[:LINES]
    ends = [*accumulate(len(line.encode()) + 1 for line in lines)]
    starts = {name: [0, *accumulate(map(len, each))][:-1] for name, each in pieces.items()}
    places = {name: [0, *(bisect_left(each, end) for end in ends)] for name, each in starts.items()}
    counts = [[after - before for before, after in pairwise(each)] for each in places.values()]
    rows = [
        [_readable(line[:48].encode()), *numbers]
        for line, numbers in zip(lines, zip(*counts, strict=True), strict=True)
        if line
    ]
    columns = [Column(name="line", number=False), *(Column(name=name, unit="count") for name in pieces)]
    note = f"The first {LINES} lines. A token counts in the line in which it begins."
    return Table(title="Tokens of each line", note=note, columns=columns, rows=rows)
