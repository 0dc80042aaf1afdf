"""Random draws inside kernels, each a pure function of a 64-bit key: SplitMix64 (Steele et al. 2014).

A kernel starts with the key of its row as `state`, adds `STEP` before each draw and scrambles the sum with `mix`.
So the draws for a row depend on no other row, no process and no history.

A permutation of range(n) is evaluated at any point without being stored: a Feistel network (Luby and Rackoff 1988)
permutes the smallest power-of-two domain that holds n; values that fall outside range(n) are permuted again until they
fall inside (cycle walking, Black and Rogaway 2002), which keeps it a bijection. The two halves may differ by a bit, so
the domain is smaller than 2n and a value takes fewer than two rounds of walking on average.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from jaxtyping import Float64, Int64, UInt64

from hornbook.kernels.compiled import GOLDEN, compiled, mix

STEP = GOLDEN
ROUNDS = 8
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(11)


def key_of(*parts: object) -> int:
    """64-bit key of a tuple of names and numbers."""
    return xxhash.xxh3_64_intdigest("\x1f".join(str(part) for part in parts).encode())


@compiled
def permuted(index, size, key):
    """Image of `index` under the permutation of range(size) named by `key` (a uint64)."""
    bits = np.uint64(0)
    while (_ONE << bits) < np.uint64(size):
        bits += _ONE
    low = bits >> _ONE
    low_mask = (_ONE << low) - _ONE
    high_mask = (_ONE << (bits - low)) - _ONE
    value = np.uint64(index)
    while True:
        high, rest = value >> low, value & low_mask
        round_key = key
        for _ in range(ROUNDS // 2):
            round_key += GOLDEN
            high ^= mix(rest + round_key) & high_mask
            round_key += GOLDEN
            rest ^= mix(high + round_key) & low_mask
        value = (high << low) | rest
        if value < np.uint64(size):
            return np.int64(value)


@compiled
def _permute_all(indices: np.ndarray, size: int, key: np.uint64, out: np.ndarray) -> None:
    for i in range(indices.size):
        out[i] = permuted(indices[i], size, key)


def permute(indices: Int64[np.ndarray, " n"], size: int, key: int) -> Int64[np.ndarray, " n"]:
    """Images of `indices` (each in range(size)) under the permutation of range(size) named by the 64-bit `key`."""
    out = np.empty(len(indices), np.int64)
    _permute_all(indices, size, np.uint64(key), out)
    return out


@compiled
def below(bits, count):
    """Uniform integer in range(count), count < 2^32; the probability of a value is off by at most 2^-32."""
    return np.int64(((bits >> _HALF) * np.uint64(count)) >> _HALF)


@compiled
def fraction(bits):
    """Uniform float64 in [0, 1)."""
    return np.float64(bits >> _LOW) * 2.0**-53


@compiled
def choose(bits, bounds):
    """Number of the share that a draw falls into; `bounds` float64 [shares] are the cumulated shares, the last 1."""
    place = fraction(bits)
    chosen = 0
    while chosen < bounds.size - 1 and place >= bounds[chosen]:
        chosen += 1
    return chosen


@compiled
def mark_subset(marks, size, count, state):
    """Mark `count` of marks[:size] (none is), all subsets with the same chance (Floyd 1987); returns the state."""
    for last in range(size - count, size):
        state += STEP
        place = below(mix(state), last + 1)
        marks[last if marks[place] else place] = True
    return state


@compiled
def shuffle(values, size, state):
    """Shuffle values[:size] in place (Fisher and Yates); returns the state."""
    for last in range(size - 1, 0, -1):
        state += STEP
        place = below(mix(state), last + 1)
        values[last], values[place] = values[place], values[last]
    return state


@compiled
def key_of_row(key, row):
    """Key of one row of a stream whose key is `key` (a uint64)."""
    return mix(key ^ mix(np.uint64(row) + np.uint64(1)))


@compiled
def _row_keys(table, streams, rows, epochs, out):
    for i in range(rows.size):
        out[i] = key_of_row(key_of_row(table[streams[i]], rows[i]), epochs[i])


class Keys(NamedTuple):
    """Keys of some streams."""

    draws: np.ndarray  # uint64 [streams]
    choices: np.ndarray  # uint64 [streams]: which component of a mixture a row belongs to


def stream_keys(seed: int, names: Sequence[str], *, evaluation: bool) -> Keys:
    """Keys of the streams of some sources; those of evaluation are others."""
    split = "evaluation" if evaluation else "training"
    draws, chosen = ([key_of(f"objective {what}", split, seed, name) for name in names] for what in ("draw", "choice"))
    return Keys(np.array(draws, np.uint64), np.array(chosen, np.uint64))


def row_keys(
    keys: Keys, streams: Int64[np.ndarray, " n"], rows: Int64[np.ndarray, " n"], epochs: Int64[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
    """A key for each row, of the stream with number `streams[i]`, in each epoch."""
    out = np.empty(len(rows), np.uint64)
    _row_keys(keys.draws, streams, rows, epochs, out)
    return out


@compiled
def _choices(table, bounds, streams, rows, epochs, out):
    for i in range(rows.size):
        out[i] = choose(key_of_row(key_of_row(table[streams[i]], epochs[i]), rows[i]), bounds)


def cumulated(weights: Sequence[float]) -> Float64[np.ndarray, " shares"]:
    """Cumulated shares, the last exactly 1; the weights sum to 1."""
    bounds = np.cumsum(weights)
    bounds[-1] = 1.0
    return bounds


def choices(
    keys: Keys,
    bounds: Float64[np.ndarray, " components"],
    streams: Int64[np.ndarray, " n"],
    rows: Int64[np.ndarray, " n"],
    epochs: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, " n"]:
    """Component of a mixture that each row belongs to in each epoch; `bounds`: cumulated shares of the components."""
    out = np.zeros(len(rows), np.int64)
    if len(bounds) > 1:
        _choices(keys.choices, bounds, streams, rows, epochs, out)
    return out


def epoch_key(keys: Keys, stream: int, epoch: int) -> np.uint64:
    """Key of the choices in one epoch of a stream: row r belongs to component `choose(key_of_row(key, r), bounds)`."""
    return np.uint64(key_of_row(keys.choices[stream], np.int64(epoch)))
