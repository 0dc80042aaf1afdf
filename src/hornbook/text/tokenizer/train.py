"""Train a unigram tokenizer (Kudo, arXiv:1804.10959) with the tokenizers library; one that loses nothing.

Text is split at blanks only, as in T5, and pieces hold their blanks as they are: no mark stands for a blank, so a text
may hold any mark. A character that is no piece is spelled in its UTF-8 bytes, so nothing is unknown.

The library adds up expectations in the order of a hash table and over threads, so its scores differ in the eleventh
digit from process to process, and those of letters that are kept only for completeness in the third. Here scores are
rounded to hundredths and such letters share the lowest score: in all trials the file was the same every time.
"""

import json
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

from hornbook.text.config.text import Unigram
from hornbook.text.tokenizer.special_tokens import OURS, spell_special_tokens
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train.characters import frequent_letters

PATTERN = r" ?\S+[\r\n]*|\s+(?!\S)|\s+"
"""Words with one leading blank, marks included, and the line ends after them. A finer split would be worse: the trainer
takes as first candidates what is repeated among different words, so a frequent word alone would be none."""
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = [*"\n<>x0123456789ABCDEF"]
"""Always pieces: a text that spells a byte token is then cheaper in letters than as that token."""
_LADDER = 1e-4
"""The library puts letters that no longer earn their place this far apart, from the lowest score upwards."""


def train_unigram(config: Unigram, texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts, which are read twice."""
    specials = spell_special_tokens(config)
    room = config.vocab - len(specials) - len(BYTES)
    letters = frequent_letters(texts, (room - len(LETTERS)) // 4)
    trainer = trainers.UnigramTrainer(
        vocab_size=room + 1,
        special_tokens=["<unk>"],
        unk_token="<unk>",
        initial_alphabet=LETTERS,
        show_progress=False,
    )
    raw = tokenizers.Tokenizer(models.Unigram())
    raw.pre_tokenizer = _splitter()  # type: ignore[assignment]
    raw.train_from_iterator(_without_rare(texts, letters), trainer)
    trained = json.loads(raw.to_str())["model"]["vocab"]
    scores = _settle({piece: score for piece, score in trained if piece not in {"<unk>", *specials, *BYTES}})
    return _assemble(_at_most(room, scores), specials)


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")


def _without_rare(texts: Iterable[list[str]], letters: Iterable[str]) -> Iterator[list[str]]:
    """The texts with a line end for each letter that is to be no piece."""
    known = {*letters, *LETTERS}
    for batch in texts:
        yield [text.translate(dict.fromkeys(map(ord, set(text) - known), "\n")) for text in batch]


def _at_most(room: int, scores: dict[str, float]) -> list[tuple[str, float]]:
    """(piece, score) by score, with every letter; the library gives a few too many where there is little room."""
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    words = [piece for piece, _ in ranked if len(piece) > 1]
    surplus = set(words[max(0, room - (len(ranked) - len(words))) :])
    return [item for item in ranked if item[0] not in surplus]


def _assemble(pieces: list[tuple[str, float]], specials: list[str]) -> Tokenizer:
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


def _settle(scores: dict[str, float | None]) -> dict[str, float]:
    """Scores that are the same in every process. The library gives none where there was no text."""
    floor = min((score for score in scores.values() if score is not None), default=-1.0)
    letters = [piece for piece in scores if len(piece) == 1]
    top = floor + _LADDER * len(letters)
    settled = {piece: floor if score is None else score for piece, score in scores.items()}
    settled |= {letter: floor for letter in letters if settled[letter] <= top}
    return {piece: round(score, 2) for piece, score in settled.items()}
