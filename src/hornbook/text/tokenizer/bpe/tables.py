"""From a tokenizer.json to the tables of the BPE kernels, or the answer that they cannot stand for it.

A kernel encodes byte-level BPE without a normaliser, split by a known regex. Whatever else a tokenizer.json asks for
(dropout, unknown tokens, added words, another pattern) leaves it to the tokenizers library.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from hornbook.text.tokenizer.bpe.styles import GPT2, STYLES, Style

_OFF = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
"""What else BPE of the library can do."""

TOKEN_BITS = 21
"""Ids are smaller than 2^21 - 1: the encoder's cache keeps three of them in 64 bits."""

_VERSIONS = ("0.22.", "0.23.")
"""Releases of the library whose letters, numbers and blanks are those of `bpe/unicode`; the tests compare them all."""

_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Merges:
    """Byte-level BPE as numbers."""

    style: Style
    byte_ids: list[int]
    """Token of each of the 256 bytes."""
    triples: list[tuple[int, int, int]]
    """(left token, right token, their merge), the earliest learned first."""


def byte_letters() -> list[str]:
    """How byte-level tokenizers spell each byte: as its Latin-1 character where that is visible, else from U+0100 on.

    GPT-2's alphabet (Radford et al. 2019), which lets a vocabulary of bytes be a vocabulary of text.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def find_merges(definition: Mapping[str, Any]) -> Merges | None:
    """The merges of a tokenizer.json that is byte-level BPE of a known kind and nothing more, else None."""
    model, style = definition["model"], _find_style(definition.get("pre_tokenizer"))
    added = definition.get("added_tokens") or []
    if style is None or definition.get("normalizer") is not None or not all(token["special"] for token in added):
        return None
    if not tokenizers.__version__.startswith(_VERSIONS):
        return None
    if model.get("type") != "BPE" or any(model.get(option) for option in _OFF):
        return None
    vocab, letters = model["vocab"], byte_letters()
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    if not all(letter in vocab for letter in letters) or max(vocab.values()) >= 2**TOKEN_BITS - 1:
        return None
    try:
        triples = [(vocab[a], vocab[b], vocab[a + b]) for a, b in pairs]
    except KeyError:
        return None
    return Merges(style, [vocab[letter] for letter in letters], triples)


def _find_style(splitter: Mapping[str, Any] | None) -> Style | None:
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


def pair_table(triples: Iterable[tuple[int, int, int]]) -> tuple[np.ndarray, int]:
    """(uint64 [2 * slots], shift): open addressing from a pair of tokens to its rank and its merge.

    A pair (a, b) is looked for from slot ((a << 32 | b) * golden) >> shift on; a slot holds the pair plus one, and
    rank << 32 | merge. Of a pair that stands twice the last counts, as in the library.
    """
    ranked = {(a << 32 | b) + 1: rank << 32 | merged for rank, (a, b, merged) in enumerate(triples)}
    bits = max(4, (2 * len(ranked)).bit_length())
    shift, mask, table = 64 - bits, 2**bits - 1, [0] * 2 ** (bits + 1)
    for key, value in ranked.items():
        slot = ((key - 1) * _GOLDEN & 2**64 - 1) >> shift
        while table[2 * slot]:
            slot = slot + 1 & mask
        table[2 * slot], table[2 * slot + 1] = key, value
    return np.array(table, np.uint64), shift
