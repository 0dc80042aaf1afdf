"""What a language model must beat: a compressor and a model without context.

gzip sees either each document alone or all of them in one stream; the unigram model knows the token
frequencies of the training text (with one added to each count) and nothing of order.
"""

import math
import zlib
from collections.abc import Iterable

import numpy as np

GZIP_WINDOW_BITS = 31  # zlib's code for the gzip container with the largest window


def gzip_bits_per_byte(documents: Iterable[bytes]) -> tuple[float, float]:
    """Bits per byte of gzip -9 over UTF-8 documents: (each document alone, all in one stream)."""
    stream = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW_BITS)
    alone = joined = size = 0
    for document in documents:
        single = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW_BITS)
        alone += len(single.compress(document)) + len(single.flush())
        joined += len(stream.compress(document))
        size += len(document)
    joined += len(stream.flush())
    if size == 0:
        return math.nan, math.nan
    return 8 * alone / size, 8 * joined / size


def unigram_bits_per_byte(train_counts: np.ndarray, held_out_counts: np.ndarray, num_bytes: int) -> float:
    """Bits per byte of held-out tokens under the unigram distribution of the training tokens.

    Both arguments are token counts [vocab]; `num_bytes` is the UTF-8 size of the held-out text.
    """
    probabilities = (train_counts + 1) / (train_counts.sum() + len(train_counts))
    bits = -float((held_out_counts * np.log2(probabilities)).sum())
    return bits / num_bytes if num_bytes else math.nan
