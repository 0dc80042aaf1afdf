"""Train a tokenizer by its configuration, on an even sample of the training documents.

WordPiece and unigram are trained here, byte-level BPE in `bpe.train`.

The tokenizers library takes characters, and adds up expectations, in the order of a hash table that differs from
process to process. What that order would decide is decided here, so that the same texts give the same file.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hornbook.text.config.text import Trained, Unigram, WordPiece
from hornbook.text.splits import Split
from hornbook.text.store import batched, read_batches
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.pieces import train_on_words
from hornbook.text.tokenizer.special_tokens import OURS, spell_special_tokens
from hornbook.text.tokenizer.tokenizer import Tokenizer

_BATCH_BYTES = 2**20
_MIN_FREQUENCY = 2
"""A character or a word piece that occurs once is chance."""
INSIDE = "##"

PATTERN = r" ?\S+[\r\n]*|\s+(?!\S)|\s+"
"""Words with one leading blank, punctuation included, and the line ends after them. A finer split would be worse: the
trainer takes as first candidates what is repeated among different words, so a frequent word alone would be none."""
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ALWAYS_PIECES = [*"\n<>x0123456789ABCDEF"]
"""Characters that are always pieces, so that a text that spells a byte token costs less in characters than as it."""
_LADDER = 1e-4
"""The library puts characters that no longer earn their piece this far apart, from the lowest score upwards."""


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """Batches of texts of the training split, evenly over all shards of documents, at most `max_bytes` in all.

    A document is taken when the bytes taken so far, with it, are at most their share of the bytes seen so far. The
    batches can be read more than once.
    """

    shards: Mapping[Path, Split]
    max_bytes: int

    def __iter__(self) -> Iterator[list[str]]:
        total = sum(row["bytes"] for shard, split in self.shards.items() for row in _training_rows(shard, split))
        share = min(1.0, self.max_bytes / total) if total else 0.0
        for batch in batched(_take(self.shards, share), lambda row: row[1], _BATCH_BYTES):
            yield [text.as_py() for text, _ in batch]


def _take(shards: Mapping[Path, Split], share: float) -> Iterator[tuple[pa.Scalar, int]]:
    """(text, its bytes) of the documents that are taken."""
    seen = taken = 0
    for shard, split in shards.items():
        for row in _training_rows(shard, split, "text"):
            size = row["bytes"]
            seen += size
            if taken + size <= share * seen:
                taken += size
                yield row["text"], size


def _training_rows(shard: Path, split: Split, *columns: str) -> Iterator[dict[str, Any]]:
    """Rows of training documents with their bytes; the other `columns` are left as Arrow scalars, for few are read."""
    for batch in read_batches(shard, [*columns, *split.columns, "bytes"]):
        facts = batch.drop_columns(list(columns)).to_pylist()
        for row, *values in zip(facts, *(batch[name] for name in columns), strict=True):
            if split.subset(row) == "train":
                yield row | dict(zip(columns, values, strict=True))


def train_tokenizer(config: Trained, texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts (read up to twice: not an iterator); the same bytes for the same texts."""
    return TRAINERS[config.kind](config, texts)


def frequent_characters(texts: Iterable[list[str]], most: int, normalize: Callable[[str], str] = str) -> list[str]:
    """The `most` most frequent characters of the normalised texts in the order of Unicode; ties go to the lower one."""
    counts: Counter[str] = Counter()
    for batch in texts:
        for text in batch:
            counts.update(normalize(text))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(character for character in ranked[:most] if counts[character] >= _MIN_FREQUENCY)


def train_wordpiece(config: WordPiece, texts: Iterable[list[str]]) -> Tokenizer:
    """WordPiece (Wu et al., arXiv:1609.08144) as BERT uses it; [CLS] and [SEP] delimit documents.

    Words are split at whitespace and punctuation (each punctuation mark and each Chinese character is a word); a piece
    inside a word is written with `##` before it. Every character of the alphabet is in the vocabulary at the start of a
    word and inside one, so a word of known characters is never unknown. The characters inside words are given to the
    library as special tokens, in a fixed order: it would number them by its hash table, which decides ties of merges.
    """
    names = OURS["wordpiece"]
    raw = tokenizers.Tokenizer(models.WordPiece(unk_token=names["unk"], max_input_chars_per_word=100))
    raw.normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)  # type: ignore[assignment]
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    raw.decoder = decoders.WordPiece(prefix=INSIDE, cleanup=False)  # type: ignore[assignment]
    specials = spell_special_tokens(config)
    frequent = frequent_characters(texts, (config.vocab - len(specials)) // 4, raw.normalizer.normalize_str)
    alphabet = [character for character in frequent if not character.isspace()]
    inner = [INSIDE + character for character in alphabet if _is_inside_words(raw, character)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[*specials, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    train_on_words(raw, texts, trainer)
    return _finish_wordpiece(raw, specials)


def _is_inside_words(raw: tokenizers.Tokenizer, character: str) -> bool:
    """Whether a character may follow another in a word; punctuation and Chinese characters may not."""
    assert raw.normalizer is not None
    assert raw.pre_tokenizer is not None
    return len(raw.pre_tokenizer.pre_tokenize_str(raw.normalizer.normalize_str(f"a{character}"))) == 1


def _finish_wordpiece(raw: tokenizers.Tokenizer, specials: list[str]) -> Tokenizer:
    """Make the alphabet ordinary tokens again, and add the template that puts the delimiters around a text."""
    data = json.loads(raw.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in specials]
    clean = tokenizers.Tokenizer.from_str(json.dumps(data))
    begin, end = OURS["wordpiece"]["cls"], OURS["wordpiece"]["sep"]
    clean.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(token, specials.index(token)) for token in (begin, end)],
    )
    return Tokenizer(clean.to_str(pretty=True), begin, end)


def train_unigram(config: Unigram, texts: Iterable[list[str]]) -> Tokenizer:
    """Unigram (Kudo, arXiv:1804.10959) that loses nothing.

    Text is split at blanks only, as in T5, and pieces keep their blanks: no mark replaces a blank, so a text may hold
    any mark. A character that is no piece is spelled in its UTF-8 bytes, so nothing is unknown.
    """
    specials = spell_special_tokens(config)
    size = config.vocab - len(specials) - len(BYTES)
    frequent = frequent_characters(texts, (size - len(ALWAYS_PIECES)) // 4)
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1,
        special_tokens=["<unk>"],
        unk_token="<unk>",
        initial_alphabet=ALWAYS_PIECES,
        show_progress=False,
    )
    raw = tokenizers.Tokenizer(models.Unigram())
    raw.pre_tokenizer = _splitter()  # type: ignore[assignment]
    train_on_words(raw, _without_rare(texts, frequent), trainer)
    trained = json.loads(raw.to_str())["model"]["vocab"]
    scores = _settle({piece: score for piece, score in trained if piece not in {"<unk>", *specials, *BYTES}})
    return _assemble_unigram(_at_most(size, scores), specials)


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")


def _without_rare(texts: Iterable[list[str]], frequent: Iterable[str]) -> Iterator[list[str]]:
    """The texts with a line end for each character that is to be no piece."""
    known = {*frequent, *ALWAYS_PIECES}
    for batch in texts:
        yield [text.translate(dict.fromkeys(map(ord, set(text) - known), "\n")) for text in batch]


def _settle(scores: dict[str, float | None]) -> dict[str, float]:
    """Scores that are the same in every process. The library gives none where there was no text.

    Its scores differ in the eleventh digit, those of characters that are kept only for completeness in the third. So
    scores are rounded to hundredths and such characters get the lowest score.
    """
    floor = min((score for score in scores.values() if score is not None), default=-1.0)
    single = [piece for piece in scores if len(piece) == 1]
    top = floor + _LADDER * len(single)
    settled = {piece: floor if score is None else score for piece, score in scores.items()}
    settled |= {character: floor for character in single if settled[character] <= top}
    return {piece: round(score, 2) for piece, score in settled.items()}


def _at_most(size: int, scores: dict[str, float]) -> list[tuple[str, float]]:
    """(piece, score) by score, with every character; the library gives a few too many for a small vocabulary."""
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    words = [piece for piece, _ in ranked if len(piece) > 1]
    surplus = set(words[max(0, size - (len(ranked) - len(words))) :])
    return [item for item in ranked if item[0] not in surplus]


def _assemble_unigram(pieces: list[tuple[str, float]], specials: list[str]) -> Tokenizer:
    """The tokenizer of special tokens, bytes, and pieces with their scores."""
    never = 10 * min([*(score for _, score in pieces), -1.0])
    vocab = [*((token, never) for token in (*specials, *BYTES)), *pieces]
    names = OURS["unigram"]
    raw = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=specials.index(names["unk"]), byte_fallback=True))
    raw.pre_tokenizer = _splitter()  # type: ignore[assignment]
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # type: ignore[assignment]
    end = names["end"]
    raw.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, specials.index(end))]
    )
    raw.add_special_tokens(specials)
    return Tokenizer(raw.to_str(pretty=True), None, end)


TRAINERS: dict[str, Callable[[Any, Iterable[list[str]]], Tokenizer]] = {
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
}
