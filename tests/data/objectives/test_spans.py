import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.objectives.pair_plan import raw_length
from hornbook.data.objectives.pairs import pair_sizes
from tests.data.pairs_by_hand import END, FIRST_SENTINEL, MODE, pairs_of, tables


def splice(source: list[int], target: list[int]) -> list[int]:
    """The text again: each sentinel of the source replaced by what the target has behind it."""
    assert (source[-1], target[-1]) == (END, END)
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if 4100 < token <= FIRST_SENTINEL:
            spans[token] = []
        else:
            spans[next(reversed(spans))].append(token)
    assert list(spans) == list(range(FIRST_SENTINEL, FIRST_SENTINEL - len(spans), -1))
    return [token for each in source[:-1] for token in spans.get(each, [each])]


@pytest.mark.parametrize(
    ("inputs", "density", "mean", "expected"),
    [
        *((64, 0.15, 3, (70, 14)), (128, 0.15, 3, (141, 29)), (256, 0.15, 3, (284, 58)), (512, 0.15, 3, (568, 114))),
        *((1024, 0.15, 3, (1137, 229)), (2048, 0.15, 3, (2274, 456))),
        *((64, 0.2, 2.0, (70, 22)), (64, 0.2, 1.0, (63, 27))),  # t5/data/preprocessors_test.py
        *((512, 0.15, 8, (588, 100)), (512, 0.5, 3, (766, 512)), (512, 0.5, 8, (908, 512))),  # UL2
        *((512, 0.15, 64, (600, 92)), (512, 0.5, 64, (1006, 512))),
    ],
)
def test_raw_lengths_are_those_of_t5_and_ul2(inputs: int, density: float, mean: float, expected: tuple) -> None:
    parts, roles = tables(density, mean)
    raw = raw_length(parts, roles, 0, inputs)
    source, target = pair_sizes(parts, roles, 0, raw)
    assert (raw, target) == expected
    assert source <= inputs
    assert max(pair_sizes(parts, roles, 0, raw + 1)) > inputs


@given(
    length=st.integers(2, 700),
    density=st.sampled_from([0.15, 0.2, 0.25, 0.5]),
    mean=st.sampled_from([1.0, 2.0, 3.0, 8.0, 64.0, math.inf]),
    mode=st.sampled_from([-1, MODE]),
)
def test_splicing_the_target_into_the_source_gives_the_text(
    length: int, density: float, mean: float, mode: int
) -> None:
    text = np.arange(100, 100 + length, dtype=np.int32)
    parts, roles = tables(density, mean, mode=mode)
    noise = min(max(round(length * density), 1), length - 1)
    spans = min(max(round(noise / mean), 1), noise, length - noise)
    for source, target in pairs_of(text, 3, parts, roles, seed=length):
        behind = source[1:] if mode >= 0 else source
        assert (source[0] == MODE) == (mode >= 0)
        assert splice(behind, target) == text.tolist()
        assert sum(token < 4000 for token in target[:-1]) == noise
        assert sum(token > 4100 for token in target) == spans
        assert (len(source), len(target)) == pair_sizes(parts, roles, 0, length)
        assert behind[0] == text[0]  # a run of text comes first
        assert target[-2] == text[-1]  # and a span last


def test_one_span_takes_the_end_of_the_text() -> None:
    text = np.arange(100, 180, dtype=np.int32)
    ((source, target),) = pairs_of(text, 1, *tables(0.25, math.inf, mode=MODE))
    assert source == [MODE, *range(100, 160), FIRST_SENTINEL, END]
    assert target == [FIRST_SENTINEL, *range(160, 180), END]


def test_every_composition_has_the_same_chance() -> None:
    text, rows = np.arange(100, 116, dtype=np.int32), 40_000  # 6 noise tokens and 10 others in 3 parts each
    parts, roles = tables(6 / 16, 2.0)
    noise_parts, kept_parts = Counter(), Counter()
    for source, target in pairs_of(text, rows, parts, roles, seed=3):
        for found, tokens in ((noise_parts, target[1:-1]), (kept_parts, source[:-2])):
            found[
                tuple(len(list(run)) for sentinel, run in itertools.groupby(tokens, lambda t: t > 4100) if not sentinel)
            ] += 1
    assert len(noise_parts) == math.comb(5, 2)
    assert len(kept_parts) == math.comb(9, 2)
    for found, limit in ((noise_parts, 27.88), (kept_parts, 66.62)):  # 99.9 % points of chi-square, 9 and 35 degrees
        expected = rows / len(found)
        assert sum((count - expected) ** 2 / expected for count in found.values()) < limit
