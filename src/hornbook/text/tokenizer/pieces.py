"""Cut a long text where the tokens on both sides stay the same, so that encoding it takes little memory.

Long words are cut for training: the library's trainers take time with the square of a word's length, and unigram's
overflows the stack at some hundred thousand characters.

The tokenizers library keeps some 200 bytes per token while it encodes, and is slow on long texts. A cut at the end
of a word is exact when the tokenizer's own splitting puts a border there and gives the same pieces on either side
alone; this is checked on a window around the cut.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

PIECE = 1 << 16
"""Characters after which a cut is searched for."""
LONGEST_WORD = 1024
"""Characters (bytes, for byte-level BPE) of a word in training; a longer word counts as several."""

_WINDOW = 256
_TRIES = 64
_CANDIDATE = re.compile(r"(?<=\w)(?=[\s!-/:-@\[-`{-~\u3000-\u303f\uff00-\uff0f])")
"""After a letter or digit, before whitespace or punctuation (not before an accent, which normalisation might join)."""
_LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}


def can_cut(definition: dict[str, Any]) -> bool:
    """Whether a tokenizer.json treats text locally: nothing done to whole texts, no token that strips whitespace."""
    normalizer = definition.get("normalizer") or {"type": "Sequence", "normalizers": []}
    parts = normalizer.get("normalizers", [normalizer])
    if definition.get("pre_tokenizer") is None or any(part["type"] not in _LOCAL_NORMALIZERS for part in parts):
        return False
    return not any(token["lstrip"] or token["rstrip"] for token in definition.get("added_tokens") or [])


@dataclass(frozen=True, slots=True)
class Cutter:
    """Finds exact cuts for one tokenizer."""

    splitter: tokenizers.pre_tokenizers.PreTokenizer
    added: tuple[str, ...]
    """Tokens that are matched in the text before it is split: no cut goes through one."""

    def cut(self, text: str, size: int = PIECE) -> Iterator[str]:
        """Pieces of about `size` characters, in order; their tokens joined are the tokens of the text."""
        start = 0
        while len(text) - start > size:
            end = self._find(text, start + size)
            if end is None:
                break
            yield text[start:end]
            start = end
        yield text[start:]

    def _find(self, text: str, start: int) -> int | None:
        positions = (match.start() for match in islice(_CANDIDATE.finditer(text, start), _TRIES))
        return next((position for position in positions if self._is_exact(text, position)), None)

    def _is_exact(self, text: str, position: int) -> bool:
        if any(
            text.find(token, max(0, position - len(token) + 1), position + len(token) - 1) >= 0 for token in self.added
        ):
            return False
        left, right = text[max(0, position - _WINDOW) : position], text[position : position + _WINDOW]
        whole, first, second = (
            [piece for piece, _ in self.splitter.pre_tokenize_str(part)] for part in (left + right, left, right)
        )
        return whole == first + second


def train_on_words(raw: tokenizers.Tokenizer, texts: Iterable[list[str]], trainer: Any) -> None:
    """Train on words of at most LONGEST_WORD characters; the trained tokenizer splits as before."""
    splitter = raw.pre_tokenizer
    assert splitter is not None
    raw.pre_tokenizer = pre_tokenizers.Sequence([splitter, pre_tokenizers.FixedLength(LONGEST_WORD)])  # type: ignore[assignment]
    raw.train_from_iterator(texts, trainer)
    raw.pre_tokenizer = splitter
