"""Input of the BPE kernels: known split regexes, the merges of a tokenizer.json, the draws of BPE-dropout.

A kernel encodes byte-level BPE without a normaliser, split by a known regex. Whatever else a tokenizer.json asks for
(dropout, unknown tokens, added tokens that take blanks, another pattern) leaves it to the tokenizers library.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import xxhash
from jaxtyping import UInt64

from hornbook.text.tokenizer.bpe.added import is_plain

_STYLES = tomllib.loads(Path(__file__).with_name("styles.toml").read_text(encoding="utf-8"))
PATTERN: str = _STYLES["ours"]["regex"]
"""The regex of the tokenizers that we train: GPT-4's."""
GPT2: str = _STYLES["gpt2"]["regex"]
STYLES: dict[str, int] = {style["regex"]: style["digits"] for style in _STYLES.values()}
"""Regex -> most digits in a row that stay together; 0 for GPT-2's."""

_OFF = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
"""What else BPE of the library can do."""

TOKEN_BITS = 21
"""Ids are smaller than 2^21 - 1: the encoder's cache keeps three of them in 64 bits."""

_VERSIONS = ("0.22.", "0.23.")
"""Releases of the library whose letters, numbers and whitespace are those of `unicode.toml`; a test compares them."""


@dataclass(frozen=True, slots=True)
class Merges:
    """Byte-level BPE as numbers."""

    digits: int
    """Of the regex that splits (`STYLES`)."""
    byte_ids: list[int]
    """Token of each of the 256 bytes."""
    triples: list[tuple[int, int, int]]
    """(left token, right token, their merge), the earliest learned first."""
    added: tuple[Mapping[str, Any], ...] = ()
    """Entries of `added_tokens` that ordinary text may spell."""


def byte_characters() -> list[str]:
    """How byte-level tokenizers spell each byte: as its Latin-1 character where that is visible, else from U+0100 on.

    GPT-2's alphabet (Radford et al. 2019), which lets a vocabulary of bytes be a vocabulary of text.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def find_merges(definition: Mapping[str, Any]) -> Merges | None:
    """The merges of a tokenizer.json that is byte-level BPE of a known kind and nothing more, else None."""
    model, digits = definition["model"], _find_digits(definition.get("pre_tokenizer"))
    added = tuple(token for token in definition.get("added_tokens") or [] if not token["special"])
    if digits is None or definition.get("normalizer") is not None or not all(map(is_plain, added)):
        return None
    if not tokenizers.__version__.startswith(_VERSIONS):
        return None
    if model.get("type") != "BPE" or any(model.get(option) for option in _OFF):
        return None
    vocab, characters = model["vocab"], byte_characters()
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    if not all(character in vocab for character in characters) or max(vocab.values()) >= 2**TOKEN_BITS - 1:
        return None
    try:
        triples = [(vocab[a], vocab[b], vocab[a + b]) for a, b in pairs]
    except KeyError:
        return None
    return Merges(digits, [vocab[character] for character in characters], triples, added)


def _find_digits(splitter: Mapping[str, Any] | None) -> int | None:
    parts = [part for part in (splitter or {}).get("pretokenizers", [splitter]) if part]
    if not parts or parts[-1]["type"] != "ByteLevel" or parts[-1].get("add_prefix_space", True):
        return None
    if len(parts) == 1:
        return STYLES[GPT2] if parts[0].get("use_regex", True) else None
    first = parts[0]
    if len(parts) > 2 or parts[1].get("use_regex", True) or first["type"] != "Split":
        return None
    if first.get("behavior") != "Isolated" or first.get("invert", False):
        return None
    return STYLES.get(first["pattern"].get("Regex", ""))


class Draws(NamedTuple):
    """What decides in each text which merges are left out (`heap.merge_by_heap`).

    It follows from (seed, source, text), and within a text from (offset of the word, step, offset of the pair): not
    from the order of documents, from workers or from what ran before. A text in two sources is cut in two ways.
    """

    keys: UInt64[np.ndarray, " texts"]
    """The start of the draws of each text."""
    limits: UInt64[np.ndarray, " texts"]
    """A merge is left out where its draw, uniform in 64 bits, is less; 0 leaves out none."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """How often merges are left out of the encoding of training texts (Provilkov et al. 2020, arXiv 1910.13267)."""

    probability: float
    """Of each possible merge at each step, 0 < probability < 1."""
    seed: int = 0

    def draws(self, source: str, texts: Sequence[str], chosen: Sequence[bool]) -> Draws:
        """The draws of texts of a source; of texts that are not chosen no merge is left out."""
        seed = xxhash.xxh3_64_intdigest(source.encode(), seed=self.seed)
        keys = [xxhash.xxh3_64_intdigest(text.encode(), seed=seed) for text in texts]
        limit = int(self.probability * 2**64)
        return Draws(np.array(keys, np.uint64), np.where(chosen, np.uint64(limit), np.uint64(0)))
