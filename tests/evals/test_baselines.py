"""Baselines against the standard library and closed forms."""

import gzip
import math

import numpy as np
import pytest

from hornbook.evals.baselines import gzip_bits_per_byte, unigram_bits_per_byte


def test_gzip_equals_the_standard_library():
    documents = [b"the cat sat on the mat " * 20, b"a different text, " * 30, b"x"]
    alone, joined = gzip_bits_per_byte(documents)
    size = sum(map(len, documents))
    assert alone == pytest.approx(8 * sum(len(gzip.compress(d, 9)) for d in documents) / size)
    assert joined == pytest.approx(8 * len(gzip.compress(b"".join(documents), 9)) / size)
    assert joined < alone


def test_gzip_of_nothing_is_not_a_number():
    assert all(math.isnan(value) for value in gzip_bits_per_byte([]))


def test_unigram_is_the_entropy_when_the_frequencies_agree():
    counts = np.array([999, 499, 499, 1999])
    bits = unigram_bits_per_byte(counts, np.array([1000, 500, 500, 2000]), 4000)
    assert bits == pytest.approx(0.25 * 2 + 2 * 0.125 * 3 + 0.5 * 1)


def test_unigram_gives_unseen_tokens_a_finite_price():
    assert math.isfinite(unigram_bits_per_byte(np.array([10, 0]), np.array([0, 5]), 5))
