from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.batch_builder import SampleRefs
from hornbook.data.corpus import Corpus
from hornbook.data.objectives.infill import LONGEST_SPAN
from hornbook.data.objectives.pair_plan import PairPlans, build_pair_plan
from hornbook.data.objectives.pairs import NoiseTable, Roles, pair_sizes
from hornbook.data.order.random_keys import choose, key_of_row

Sizes = Callable[[int, int], tuple[int, int]]


def tables(shapes: list[tuple[str, float, float]], begin: int = -1) -> tuple[NoiseTable, Roles]:
    """Parts with equal shares: (kind, rate, mean length of a span)."""
    count = len(shapes)
    parts = NoiseTable(
        np.arange(1, count + 1) / count,
        np.array([kind == "infill" for kind, _, _ in shapes]),
        np.array([rate for _, rate, _ in shapes]),
        np.array([mean for _, _, mean in shapes]),
        np.array([3 if kind == "mode" else -1 for kind, _, _ in shapes]),
        np.zeros(count, np.int64),
        np.zeros(count, np.bool_),
        np.ones((count, LONGEST_SPAN + 1)),
    )
    return parts, Roles(np.arange(900, dtype=np.int32), 5, begin, 1, 0, np.empty(0, np.bool_))


def packed(documents: list[tuple[int, int]], sequence: int, sizes: Sizes, part_of: Callable[[int], int]) -> list:
    """Row, first token and length of each piece, found by trying one token more as long as it fits."""
    pieces, row, source, target = [], 0, 0, 0
    for begin, end in documents:
        at = begin
        while end - at >= 2:
            length = 1
            while at + length < end:
                more = sizes(part_of(row), length + 1)
                if source + more[0] > sequence or target + more[1] > sequence:
                    break
                length += 1
            if length < 2:
                row, source, target = row + 1, 0, 0
                continue
            pieces.append((row, at, length))
            made = sizes(part_of(row), length)
            at, source, target = at + length, source + made[0], target + made[1]
    return pieces


def size_of(shape: tuple[str, float, float], length: int, begin: int) -> tuple[int, int]:
    """Source and target of a piece, by the formulas of T5 and BART."""
    kind, rate, mean = shape
    if kind == "infill":
        return length + 1 + (begin >= 0), length + 1 + (begin >= 0)
    noise = min(max(round(length * rate), 1), length - 1)
    spans = min(max(round(noise / mean), 1), noise, length - noise)
    return length - noise + spans + 1 + (kind == "mode"), noise + spans + 1


SHAPES = st.tuples(
    st.sampled_from(["span", "mode", "infill"]),
    st.sampled_from([0.1, 0.15, 0.25, 0.3, 0.5]),
    st.sampled_from([1.0, 3.0, 8.0, 1000.0]),
)


@given(
    lengths=st.lists(st.integers(2, 90), min_size=1, max_size=14),
    shapes=st.lists(SHAPES, min_size=1, max_size=3),
    sequence=st.integers(6, 50),
    written=st.fixed_dictionaries({"shards": st.integers(1, 3), "separate_end": st.booleans()}),
    document_mask=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_plans_equal_the_slow_reference(
    make_corpus: Callable,
    *,
    lengths: list[int],
    shapes: list,
    sequence: int,
    written: Any,
    document_mask: bool,
    key: int,
) -> None:
    raw = make_corpus({"a": lengths}, **written)
    begin = raw.delimiter if raw.delimiter != raw.end else -1
    parts, roles = tables(shapes, begin)
    stream = Corpus.open(raw.path).train["a"]
    plan = build_pair_plan(stream, sequence, parts, roles, np.uint64(key), document_mask=document_mask)
    ends = np.cumsum(lengths).tolist()
    documents = [(end - length + 1, end - (begin >= 0)) for length, end in zip(lengths, ends, strict=True)]

    def sizes(part: int, length: int) -> tuple[int, int]:
        made = size_of(shapes[part], length, begin)
        assert pair_sizes(parts, roles, part, length) == made
        return made

    expected = packed(
        documents if document_mask else [(0, ends[-1])],
        sequence,
        sizes,
        lambda row: choose(np.uint64(key_of_row(np.uint64(key), row)), parts.bounds),
    )
    offsets, begins, some = plan.segments(np.arange(plan.rows))
    found = zip(np.repeat(np.arange(plan.rows), np.diff(offsets)).tolist(), begins.tolist(), some.tolist(), strict=True)
    assert list(found) == expected
    assert plan.padding >= 0


def test_a_plan_is_kept_and_a_damaged_one_made_again(make_corpus: Callable, tmp_path: Path) -> None:
    stream = Corpus.open(make_corpus({"a": [50, 80, 30]}).path).train["a"]
    parts, roles = tables([("span", 0.15, 3.0)])

    def build(sequence: int = 32) -> str:
        return build_pair_plan(stream, sequence, parts, roles, np.uint64(1), document_mask=True, cache=tmp_path).digest

    first = build()
    (kept,) = tmp_path.glob("pairs-*.npy")
    assert build() == first != build(33)
    kept.write_bytes(kept.read_bytes()[:-8])
    assert build() == first


def test_epochs_of_other_lengths_wrap_around(make_corpus: Callable) -> None:
    stream = Corpus.open(make_corpus({"a": [500] * 20}).path).train["a"]
    parts, roles = tables([("span", 0.15, 3.0), ("span", 0.5, 3.0)])
    plans = PairPlans(
        lambda _, epoch: build_pair_plan(stream, 32, parts, roles, np.uint64(epoch), document_mask=True), 1, vary=True
    )
    rows = np.arange(plans.first[0].rows)
    counts = set()
    for epoch in range(6):
        refs = SampleRefs(rows, np.zeros_like(rows), rows, np.full_like(rows, epoch))
        (offsets, begins, sizes), numbers = plans.segments(refs)
        again = build_pair_plan(stream, 32, parts, roles, np.uint64(epoch), document_mask=True)
        counts.add(again.rows)
        assert (numbers == rows % again.rows).all()
        expected = again.segments(numbers)
        assert all((one == other).all() for one, other in zip((offsets, begins, sizes), expected, strict=True))
    assert len(counts) > 1
