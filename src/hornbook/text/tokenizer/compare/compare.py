"""Several tokenizers on several texts: what each makes of them, and how fast.

*Fertility* is tokens per word, where words are what blanks separate (so for languages without blanks only its
comparison between tokenizers means something). Delimiters of documents are not counted.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hornbook.text.tokenizer.compare.text_samples import TextSample
from hornbook.text.tokenizer.tokenizer import Tokenizer

ROUNDS = 3
"""How often each text is encoded; the fastest round counts, and the tokenizers take turns."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenizerMetrics:
    """Counts of one tokenizer on one text."""

    tokenizer: str
    corpus: str
    documents: int
    bytes: int
    words: int
    tokens: int
    unknown: int
    """Tokens that stand for what cannot be expressed."""
    exact: int
    """Documents that decode to what they were."""
    seen: np.ndarray
    """Which tokens occur, special ones aside: bool [ids]."""
    possible: int
    """How many tokens there are, special ones aside."""
    seconds: float

    @property
    def lossless(self) -> bool:
        """Whether every document decoded to what it was."""
        return self.exact == self.documents

    def to_json(self) -> dict[str, Any]:
        """The metrics as people compare them."""
        return {
            "tokenizer": self.tokenizer,
            "corpus": self.corpus,
            "bytes": self.bytes,
            "tokens": self.tokens,
            "bytes_per_token": self.bytes / max(self.tokens, 1),
            "tokens_per_word": self.tokens / max(self.words, 1),
            "unknown_share": self.unknown / max(self.tokens, 1),
            "vocabulary_used": int(np.count_nonzero(self.seen)) / max(self.possible, 1),
            "exact_share": self.exact / max(self.documents, 1),
            "megabytes_per_second": self.bytes / 1e6 / self.seconds,
        }

    def plus(self, other: "TokenizerMetrics") -> "TokenizerMetrics":
        """Both texts together."""
        counts = ("documents", "bytes", "words", "tokens", "unknown", "exact", "seconds")
        sums = {name: getattr(self, name) + getattr(other, name) for name in counts}
        return TokenizerMetrics(self.tokenizer, "all", seen=self.seen | other.seen, possible=self.possible, **sums)


def compare(tokenizers: Mapping[str, Tokenizer], samples: Sequence[TextSample]) -> list[TokenizerMetrics]:
    """Metrics of every tokenizer on every sample, and on all of them where there are several; by sample."""
    metrics: list[TokenizerMetrics] = []
    for sample in samples:
        encoded = {name: tokenizer.encode_arrays(sample.texts) for name, tokenizer in tokenizers.items()}
        seconds = _race(tokenizers, sample)
        metrics += [
            _measure(name, tokenizer, sample, encoded[name], seconds[name]) for name, tokenizer in tokenizers.items()
        ]
    return metrics + (_totals(metrics, list(tokenizers)) if len(samples) > 1 else [])


def _race(tokenizers: Mapping[str, Tokenizer], sample: TextSample) -> dict[str, float]:
    """Seconds of the fastest round of each."""
    best = dict.fromkeys(tokenizers, float("inf"))
    for _ in range(ROUNDS):
        for name, tokenizer in tokenizers.items():
            started = time.perf_counter()
            tokenizer.encode_arrays(sample.texts)
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def _measure(
    name: str, tokenizer: Tokenizer, sample: TextSample, encoded: list[np.ndarray], seconds: float
) -> TokenizerMetrics:
    tail = 1 if tokenizer.end_id != tokenizer.delimiter_id else 0
    bodies = [ids[1 : len(ids) - tail] for ids in encoded]
    possible = tokenizer.token_bytes() > 0
    seen = np.zeros(tokenizer.vocab_size, bool)
    seen[np.concatenate(bodies)] = True
    unknown = 0 if tokenizer.unknown_id is None else sum(int(np.sum(ids == tokenizer.unknown_id)) for ids in bodies)
    return TokenizerMetrics(
        tokenizer=name,
        corpus=sample.name,
        documents=len(bodies),
        bytes=sample.bytes,
        words=sum(len(text.split()) for text in sample.texts),
        tokens=sum(map(len, bodies)),
        unknown=unknown,
        exact=sum(tokenizer.decode(ids.tolist()) == text for ids, text in zip(bodies, sample.texts, strict=True)),
        seen=seen & possible,
        possible=int(np.count_nonzero(possible)),
        seconds=seconds,
    )


def _totals(metrics: list[TokenizerMetrics], names: list[str]) -> list[TokenizerMetrics]:
    totals: dict[str, TokenizerMetrics] = {}
    for each in metrics:
        totals[each.tokenizer] = totals[each.tokenizer].plus(each) if each.tokenizer in totals else each
    return [totals[name] for name in names]
