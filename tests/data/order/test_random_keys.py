import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.order.random_keys import ROUNDS, key_of, permute

MASK = 2**64 - 1


def reference_mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def reference(index: int, size: int, key: int) -> int:
    bits = (size - 1).bit_length()
    low = bits // 2
    while True:
        high, rest, round_key = index >> low, index & ((1 << low) - 1), key
        for _ in range(ROUNDS // 2):
            round_key = (round_key + 0x9E3779B97F4A7C15) & MASK
            high ^= reference_mix((rest + round_key) & MASK) & ((1 << (bits - low)) - 1)
            round_key = (round_key + 0x9E3779B97F4A7C15) & MASK
            rest ^= reference_mix((high + round_key) & MASK) & ((1 << low) - 1)
        index = (high << low) | rest
        if index < size:
            return index


SIZES = [*range(1, 260), 511, 512, 513, 1000, 4095, 4096, 4097, 65_537, 100_003]


@pytest.mark.parametrize("key", [0, 1, MASK])
def test_is_a_bijection_for_every_size(key: int) -> None:
    for size in SIZES:
        assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size)), size


@given(st.integers(1, 2**40), st.integers(0, MASK), st.data())
def test_equals_the_slow_reference(size: int, key: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    assert permute(np.array([index]), size, key)[0] == reference(index, size, key)


def test_keys_give_different_permutations_and_every_image_is_equally_likely() -> None:
    size, keys = 11, 4400
    images = np.array([permute(np.arange(size), size, key_of("test", key)) for key in range(keys)])
    for place in range(size):
        counts = np.bincount(images[:, place], minlength=size)
        # chi-square with 10 degrees of freedom; 40 is exceeded with probability 2e-5
        assert ((counts - keys / size) ** 2 / (keys / size)).sum() < 40
    follows = np.mean(np.diff(images, axis=1) == 1)
    assert abs(follows - 1 / size) < 0.01


def test_key_of_separates_its_parts() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of(1, "a") == key_of(1, "a")
