import itertools
import math
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.objectives.infill import draw_spans, poisson_bounds
from tests.data.pairs_by_hand import END, MASK, pairs_of, tables


@given(length=st.integers(2, 300), rate=st.sampled_from([0.1, 0.3, 0.5]), permute=st.booleans())
def test_the_source_keeps_the_other_tokens_and_the_target_is_the_text(length: int, rate: float, permute: bool) -> None:
    text = np.arange(101, 101 + length, dtype=np.int32)
    parts, roles = tables(rate, 3.0, infills=True, permute=permute)
    for source, target in pairs_of(text, 3, parts, roles, seed=length):
        assert target == [*text.tolist(), END]
        assert source[-1] == END
        kept = [token for token in source[:-1] if token != MASK]
        assert len(kept) == length - max(1, round(rate * length))
        assert len(set(kept)) == len(kept)
        assert set(kept) <= set(text.tolist())
        assert len(source) <= len(target)
        if not permute:
            assert kept == sorted(kept)


def test_spans_sum_to_what_is_masked_and_those_of_length_zero_have_their_rate() -> None:
    spans, lengths = np.empty(400, np.int64), Counter()
    for seed in range(4000):
        count, _ = draw_spans(154, poisson_bounds(3.0), spans, np.uint64(seed * 7919))
        assert spans[:count].sum() == 154
        lengths.update(spans[:count].tolist())
    total, rate = sum(lengths.values()), math.exp(-3.0)
    assert abs(lengths[0] / total - rate) < 3.29 * math.sqrt(rate * (1 - rate) / total)
    assert abs(sum(length * count for length, count in lengths.items()) / total - 3.0) < 0.1


def test_a_span_of_length_zero_inserts_a_mask() -> None:
    text = np.arange(101, 141, dtype=np.int32)
    inserted = 0
    for source, _ in pairs_of(text, 400, *tables(0.3, 3.0, infills=True)):
        around = zip(source, source[1:], source[2:], strict=False)
        inserted += sum(after == before + 1 and token == MASK for before, token, after in around)
    assert inserted > 30  # 0.05 of 400 x 4.7 spans are empty, and most of these stand between two tokens that are kept


def test_every_place_of_a_span_has_the_same_chance() -> None:
    text = np.arange(101, 107, dtype=np.int32)  # 2 of 6 tokens are masked: together, in 5 places, or apart
    rows = pairs_of(text, 20_000, *tables(1 / 3, 3.0, infills=True), seed=5)
    places = Counter(source.index(MASK) for source, _ in rows if source.count(MASK) == 1)
    assert sorted(places) == [0, 1, 2, 3, 4]
    expected = sum(places.values()) / 5
    assert sum((count - expected) ** 2 / expected for count in places.values()) < 18.47  # 99.9 %, 4 degrees


def test_sentences_are_shuffled_whole_and_every_order_has_the_same_chance() -> None:
    sentences, rows = ([101, 102, 150], [103, 104, 200], [105, 106, 107, 250], [108, 109]), 12_000
    text = np.array(list(itertools.chain(*sentences)), np.int32)
    orders = dict.fromkeys(itertools.permutations(range(4)), 0)
    for source, _ in pairs_of(text, rows, *tables(0.05, 3.0, infills=True, permute=True), seed=6):
        kept = [token for token in source[:-1] if token != MASK]  # one token is masked
        order = [
            number for number, _ in itertools.groupby(kept, lambda t: next(k for k in range(4) if t in sentences[k]))
        ]
        orders[tuple(order)] += 1
        assert kept == [token for number in order for token in sentences[number] if token in kept]
    expected = rows / 24
    assert sum((count - expected) ** 2 / expected for count in orders.values()) < 49.73  # 99.9 %, 23 degrees
