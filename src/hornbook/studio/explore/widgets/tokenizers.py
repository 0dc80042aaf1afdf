"""Tokenizers: a text in bytes, in characters, in words, and in a byte-level BPE learned from it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, takewhile

from pydantic import Field
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import ENGLISH, LONGEST_TEXT, Preset, explorer, slider
from hornbook.studio.explore.views import Answer, Columns, Curves, Line, Mark, Passage, Passages, Table
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.tables import PATTERN
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.tokenizer import Tokenizer

TEXT = """The tokenizer cuts a text into pieces, and the model reads one number for each piece of the text.
Der Tokenizer zerlegt einen Text in Stücke, und das Modell liest für jedes Stück des Textes eine Zahl.
def tokenize(text):
    return [token for token in text.split()]
"""
SHOWN, LINES = 600, 12
"""Most bytes of a passage; most lines of the table."""
Pieces = Sequence[bytes]
SIZES = (257, 272, 288, 320, 384, 512, 768, 1024, 2048, 4096)


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


class TokenizersQuestion(Config):
    """A text, and a tokenizer that learns from it or from another text."""

    text: str = Field(default=TEXT, min_length=1, max_length=LONGEST_TEXT)
    """The text to cut, of at most 20,000 characters."""
    learn_from: str = Field(default="", max_length=LONGEST_TEXT)
    """The text that the BPE learns its merges from. Empty: the text above, which is the best case."""
    vocabulary: int = slider(512, 257, 4096, logarithmic=True)
    """Tokens that the BPE may have (`text.tokenizer.vocab`): an end token, 256 bytes, and merges."""


def _sizes(question: TokenizersQuestion) -> Answer:
    made = {size: cut_into_tokens(question.text, question.learn_from, size)["BPE"] for size in SIZES}
    rates = [len(question.text.encode()) / len(each) for each in made.values()]
    curve = Line(name="BPE", x=[*made], y=rates)
    mark = Mark(x=question.vocabulary, name="your vocabulary")
    title, note = "Bytes per token over the vocabulary", "The curve is flat where no pair occurs twice."
    return Answer(sizes=Curves(title=title, note=note, curves=[curve], x="vocabulary", logarithmic="x", marks=[mark]))


@explorer(
    "Tokenizers",
    asks="How many tokens is a text, and where are the cuts between them?",
    code=("text.tokenizer.bpe.train:train_bpe", "text.tokenizer.tokenizer:Tokenizer", "text.config.text:BPE"),
    presets=(
        Preset("Learned from the text itself", {}),
        Preset("Learned from English", {"learn_from": ENGLISH}),
        Preset("Hardly any merges", {"vocabulary": 288}),
    ),
    settings=lambda question: {"text.tokenizer.kind": "bpe", "text.tokenizer.vocab": question.vocabulary},
    further=_sizes,
)
def tokenizers(question: TokenizersQuestion) -> Answer:
    """A model reads numbers, so a text is cut into tokens first. Bytes need no vocabulary, but a text has many of them.
    Byte-level BPE begins with bytes and merges the most frequent pair of neighbours, again and again, so frequent words
    become one token. It never merges across words, so words are its limit. Text in a language that the tokenizer
    has not learned from needs more tokens, which costs more time and fills the context sooner."""
    pieces = cut_into_tokens(question.text, question.learn_from, question.vocabulary)
    size, bpe = len(question.text.encode()), learned(question.learn_from or question.text, question.vocabulary)
    known = {"bytes": 256, "BPE": bpe.vocab_size}
    rows = [[name, known.get(name, len(set(each))), len(each), size / len(each)] for name, each in pieces.items()]
    columns: Columns = {"tokenizer": None, "vocabulary": "count", "tokens": "count", "bytes per token": ""}
    note = "The vocabulary of characters and of words is what this text has. Many texts together have far more."
    shown = (
        f"A bar separates two tokens. Parts of a character are hexadecimal bytes. The first {SHOWN} bytes are shown."
    )
    passages = [Passage(name=f"{name}: {len(each):,}", text=passage_of(each)) for name, each in pieces.items()]
    return Answer(
        tokenizers=Table(title="One text", note=note, columns=columns, rows=rows, chosen=[*pieces].index("BPE")),
        lines=tokens_of_lines(question.text, pieces),
        pieces=Passages(title="The pieces", note=shown, passages=passages),
    )


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
    columns: Columns = {"line": None, **dict.fromkeys(pieces, "count")}
    note = f"The first {LINES} lines. A token counts in the line in which it begins."
    return Table(title="Tokens of each line", note=note, columns=columns, rows=rows)
