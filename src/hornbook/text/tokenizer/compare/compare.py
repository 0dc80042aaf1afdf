"""Several tokenizers on several texts: what each makes of them, and how fast; and samples of texts for that.

A sample is of a folder, of files, or of the held-out part of prepared data.

*Fertility* is tokens per word, where words are what blanks separate (so for languages without blanks only its
comparison between tokenizers means something). Delimiters of documents are not counted.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.readers import ReadOptions, read_file
from hornbook.text.ingest.skipped import SkippedRows
from hornbook.text.refinery.pipeline.folder import read_text_config
from hornbook.text.splits import is_validation
from hornbook.text.store import read_batches
from hornbook.text.tokenizer.tokenizer import Tokenizer

ROUNDS = 3
"""How often each text is encoded; the fastest round counts, and the tokenizers take turns."""


@dataclass(frozen=True, slots=True)
class TextSample:
    """Documents of one corpus, or the beginnings of them."""

    name: str
    texts: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Their UTF-8 bytes."""
        return sum(len(text.encode()) for text in self.texts)


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
    if len(samples) > 1:
        own = [[each for each in metrics if each.tokenizer == name] for name in tokenizers]
        metrics += [reduce(TokenizerMetrics.plus, each) for each in own]
    return metrics


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


def sample_path(name: str, path: str, most: int, skipped: SkippedRows | None = None) -> TextSample:
    """About `most` bytes of the text that a path names, evenly over its files; `skipped` counts unreadable rows.

    Raises UsageError where nothing can be read.
    """
    source = SourceConfig(paths=[path])
    files = list_inputs(name, source)
    total = max(sum(file.size for file in files), 1)
    skipped = skipped or SkippedRows()
    texts: list[str] = []
    for file in files:
        documents = skipped.documents(read_file(file, ReadOptions.of(source)))
        texts += _first((each.text for each in documents if each.text.strip()), max(1, most * file.size // total))
    if not texts:
        raise UsageError(f"{path} holds no text" + (f": {skipped.first}" if skipped.first else ""))
    return TextSample(name, tuple(texts))


def sample_prepared(data: Path, most: int, *, held_out: bool) -> list[TextSample]:
    """About `most` bytes of each source of a prepared folder: of its held-out documents where that is asked for.

    A source without held-out documents gives any. Raises UsageError where the folder is not prepared.
    """
    config = read_text_config(data)
    shares = (config.validation, 1.0) if held_out else (1.0,)
    samples = [_sample_source(data, source, shares, most) for source in config.sources]
    return [sample for sample in samples if sample.texts]


def _sample_source(data: Path, source: str, shares: tuple[float, ...], most: int) -> TextSample:
    shards = sorted((data / "documents" / source).glob("*.parquet"))
    for share in shares:
        texts = [text for shard in shards for text in _first(_held_out(shard, share), most // len(shards))]
        if texts:
            return TextSample(source, tuple(texts))
    return TextSample(source, ())


def _held_out(shard: Path, share: float) -> Iterator[str]:
    for rows in read_batches(shard, ["text", "cluster"]):
        texts, clusters = rows.columns
        for text, cluster in zip(texts, clusters.to_pylist(), strict=True):
            if is_validation(cluster, share):
                yield text.as_py()


def _first(texts: Iterator[str], most: int) -> Iterator[str]:
    """Texts until their bytes are `most`; the last one is cut."""
    for text in texts:
        part = text.encode()[:most].decode("utf-8", "ignore")
        if not part:
            return
        yield part
        most -= len(part.encode())
