"""A language model over bytes as an automaton (one step per byte, no hashing), and the step that scores by it.

A state is the longest suffix of the text so far that is an n-gram of the model. The next byte leads to one of the
n-grams that extend it, whose surprise is stored; where there is none, the state becomes its own longest suffix, for
the back-off weight, and tries again (Aho and Corasick 1975, with the probabilities of a back-off model).

It reads bytes, so that nothing is unknown: names, formulas, code and scripts without spaces are scored like prose,
and no definition of a word matters. CCNet (Wenzek et al. 2020) filters by such a score.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.durable import write_atomic
from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import pack
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Columns, Decision

MOST_ORDER = 8
"""Bytes in a 64-bit number."""
FEED = 0x0A
"""Padding before a text."""

VERSION = 1
_KIND = "perplexity"
_ARRAYS = {"byte": "U8", "bits": "F32", "rest_bits": "F32", "first": "U32", "end": "U32"}
_BATCH = 512


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModel:
    """N-grams in the order of their lengths, then of their bytes; number 0 is the empty n-gram."""

    byte: np.ndarray
    """uint8 [n-grams]: the last byte of each."""
    bits: np.ndarray
    """float32 [n-grams]: -log2 of the probability of the last byte given those before it."""
    rest_bits: np.ndarray
    """float32 [contexts]: -log2 of the back-off weight, of n-grams shorter than the order."""
    first: np.ndarray
    """uint32 [contexts + 1]: the first of the n-grams that extend a context; those of the next context follow."""
    end: np.ndarray
    """uint32 [n-grams]: the n-gram without its first byte."""
    order: int
    """Bytes of the longest n-grams."""

    def bits_per_byte(self, texts: Sequence[str]) -> np.ndarray:
        """float64 [texts]: the mean of -log2 p(byte | bytes before it); 0 for an empty text."""
        found = np.zeros(len(texts))
        for first in range(0, len(texts), _BATCH):
            data, bounds = pack(texts[first : first + _BATCH])
            out = found[first : first + _BATCH]
            _mean_bits(data, bounds, self.start(), self.byte, self.bits, self.rest_bits, self.first, self.end, out)
        return found

    def start(self) -> int:
        """The state before a text, which is as after line feeds."""
        state = 0
        for _ in range(self.order - 1):
            below = slice(int(self.first[state]), int(self.first[state + 1]))
            there = np.flatnonzero(self.byte[below] == FEED)
            state = below.start + int(there[0]) if len(there) else state
        return state

    def save(self, path: Path) -> None:
        """Write the file."""
        facts = json.dumps({"version": VERSION, "order": self.order, "digest": self._digest()})
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        write_atomic(path, save(arrays, metadata={_KIND: facts}))  # one value: safetensors does not order several

    def _digest(self) -> str:
        digest = xxhash.xxh3_128()
        for name in _ARRAYS:
            digest.update(getattr(self, name).data)
        return digest.hexdigest()

    @staticmethod
    def load(path: Path) -> "LanguageModel":
        """Read the file. Raises what `read_facts` raises, and IntegrityError where it is damaged."""
        facts = read_facts(path)
        with safe_open(path, framework="numpy") as file:
            model = LanguageModel(**{name: file.get_tensor(name) for name in _ARRAYS}, order=facts["order"])
        if facts["digest"] != model._digest() or not model._is_sound():
            raise IntegrityError(f"{path} is damaged: train it again with `hornbook prepare perplexity`")
        return model

    def _is_sound(self) -> bool:
        """Whether every step of the automaton stays inside the arrays and terminates."""
        count, contexts = len(self.byte), len(self.rest_bits)
        if not (len(self.bits) == len(self.end) == count and len(self.first) == contexts + 1 and count > 256):
            return False
        falls = self.end[1:] < np.arange(1, count)
        grows = self.first[1:] >= self.first[:-1]
        whole = np.array_equal(self.byte[1:257], np.arange(256)) and self.first[0] == 1 and self.first[1] == 257
        ends = self.end[contexts:] < contexts
        numbers = np.isfinite(self.bits).all() and np.isfinite(self.rest_bits).all()
        return bool(whole and falls.all() and grows.all() and ends.all() and numbers and self.first[-1] == count)


def read_facts(path: Path) -> dict[str, Any]:
    """Version, order and digest of a model. Raises UsageError where it is missing, IntegrityError where damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            known = file.metadata() or {}
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - no mapping
        facts = json.loads(known[_KIND])
        version, order = facts["version"], facts["order"]
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such language model; train one with `hornbook prepare perplexity`") from error
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is not a language model of hornbook: {error}") from error
    if version != VERSION:
        remedy = "train it again with `hornbook prepare perplexity`"
        raise IntegrityError(f"{path} is of version {version}, and this hornbook reads version {VERSION}: {remedy}")
    if kinds != _ARRAYS or order not in range(2, MOST_ORDER + 1) or "digest" not in facts:
        raise IntegrityError(f"{path} is not a language model of hornbook: it holds {kinds}, and order {order}")
    return facts


@compiled
def _follow(byte, begin, end, wanted):
    """The n-gram among begin..end whose last byte is `wanted`, or -1."""
    while end - begin > 8:
        middle = (begin + end) >> 1
        if byte[middle] <= wanted:
            begin = middle
        else:
            end = middle
    for place in range(begin, end):
        if byte[place] == wanted:
            return place
    return -1


@compiled
def _mean_bits(data, bounds, start, byte, bits, rest_bits, first, end, out):
    contexts = len(rest_bits)
    for text in range(len(out)):
        total, state = 0.0, start
        for place in range(bounds[text], bounds[text + 1] - 1):
            wanted = data[place]
            found = _follow(byte, np.int64(first[state]), np.int64(first[state + 1]), wanted)
            while found < 0:
                total += rest_bits[state]
                state = np.int64(end[state])
                found = _follow(byte, np.int64(first[state]), np.int64(first[state + 1]), wanted)
            total += bits[found]
            state = found if found < contexts else np.int64(end[found])
        out[text] = total / max(bounds[text + 1] - 1 - bounds[text], 1)


class Perplexity(Decision):
    """Drops documents above the maximum or below the minimum."""

    columns = {"bits_per_byte": "float64"}  # noqa: RUF012 - read only

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._path = Path(config.model)
        read_facts(self._path)
        self.reasons = tuple(f"perplexity of {self._path.stem} too {side}" for side in ("high", "low"))

    @cached_property
    def _model(self) -> LanguageModel:
        """Read when the first documents are measured."""
        return LanguageModel.load(self._path)

    def measure(self, documents: Sequence[Document]) -> Columns:
        """Bits per byte of each document; 0 where it is empty."""
        return {"bits_per_byte": self._model.bits_per_byte([document.text for document in documents])}

    def decide(self, columns: Columns) -> np.ndarray:
        """1 above the maximum, 2 below the minimum."""
        bits = columns[f"{self.name}.bits_per_byte"]
        low = np.where(bits < self.config.minimum, 2, 0)
        return np.where(bits > self.config.maximum, 1, low).astype(np.uint8)
