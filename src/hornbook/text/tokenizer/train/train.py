"""Which trainer makes which kind of tokenizer."""

from collections.abc import Callable, Iterable
from typing import Any

from hornbook.text.config.text import Trained
from hornbook.text.tokenizer.bpe.bpe import train_bpe
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train.unigram import train_unigram
from hornbook.text.tokenizer.train.wordpiece import train_wordpiece

TRAINERS: dict[str, Callable[[Any, Iterable[list[str]]], Tokenizer]] = {
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
}


def train_tokenizer(config: Trained[Any], texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts (read up to twice: not an iterator); the same bytes for the same texts."""
    return TRAINERS[config.kind](config, texts)
