"""Baselines that a language model must beat: a compressor and a model without context.

gzip sees either each document alone or all of them in one stream; the unigram model knows the token
frequencies of the training text (with one added to each count) and nothing of order.
"""

import math
import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from hornbook.data.corpus import Corpus, Stream
from hornbook.evals.documents import documents
from hornbook.text.tokenizer.tokenizer import Tokenizer

GZIP_WINDOW_BITS = 31  # zlib's code for the gzip container with the largest window


def gzip_bits_per_byte(documents: Iterable[bytes]) -> tuple[float, float]:
    """Bits per byte of gzip -9 over UTF-8 documents: (each document alone, all in one stream)."""
    stream = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW_BITS)
    alone = concatenated = size = 0
    for document in documents:
        single = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW_BITS)
        alone += len(single.compress(document)) + len(single.flush())
        concatenated += len(stream.compress(document))
        size += len(document)
    concatenated += len(stream.flush())
    if size == 0:
        return math.nan, math.nan
    return 8 * alone / size, 8 * concatenated / size


def unigram_bits_per_byte(train_counts: np.ndarray, held_out_counts: np.ndarray, num_bytes: int) -> float:
    """Bits per byte of held-out tokens under the unigram distribution of the training tokens.

    Both arguments are token counts [vocab]; `num_bytes` is the UTF-8 size of the held-out text.
    """
    probabilities = (train_counts + 1) / (train_counts.sum() + len(train_counts))
    bits = -float((held_out_counts * np.log2(probabilities)).sum())
    return bits / num_bytes if num_bytes else math.nan


def baselines(corpus: Corpus, tokenizer: Tokenizer) -> dict[str, float]:
    """Bits per byte of the validation text under gzip and under the unigram model of the training tokens."""
    texts = [
        tokenizer.decode(tokens.tolist()).encode()
        for stream in corpus.validation.values()
        for tokens in documents(stream, {corpus.delimiter_id, corpus.end_id})
    ]
    alone, concatenated = gzip_bits_per_byte(texts)
    unigram = unigram_bits_per_byte(_counts(corpus, "train"), _counts(corpus, "validation"), sum(map(len, texts)))
    return {"gzip_per_document": alone, "gzip_concatenated": concatenated, "unigram": unigram}


def _counts(corpus: Corpus, split: str) -> np.ndarray:
    """How often each token occurs in a split: int64 [vocab]."""
    streams: Mapping[str, Stream] = getattr(corpus, split)
    counts = np.zeros(corpus.vocab_size, np.int64)
    for stream in streams.values():
        for shard in stream.shards:
            counts += np.bincount(shard.data, minlength=corpus.vocab_size)
    return counts
