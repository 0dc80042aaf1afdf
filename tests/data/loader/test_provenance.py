"""Documents back to positions: the inverse of `documents`, by looking at every position."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.config.data import DataConfig
from hornbook.data.corpus import Corpus
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.loader.provenance import (
    Learned,
    all_streams,
    end_of,
    find_documents,
    first_step,
    positions_of_documents,
)
from tests.data.conftest import Raw

LENGTHS = {"a": [3, 40, 7, 16, 16, 5, 9], "b": [12, 33, 4, 25]}


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_positions_of_a_document_are_those_that_name_it(make_corpus: Callable[..., Raw], packing: str):
    raw = make_corpus(LENGTHS, shards=2)
    config = DataConfig.model_validate({"packing": packing})
    index = GlobalIndex(Corpus.open(raw.path), config, sequence=16, seed=3)
    samples = 3 * sum(plan.rows for plan in index.plans)
    names: dict[str, list[int]] = {}
    for position in range(samples):
        for reference in index.documents(position):
            names.setdefault(reference.id, []).append(position)
    for name, positions in list(names.items())[::5]:
        found = find_documents(all_streams(index), name)
        assert [each.id for each in found] == [name]
        assert positions_of_documents(index, found, samples).tolist() == sorted(set(positions))
    assert positions_of_documents(index, [], samples).tolist() == []


def learned_by_hand(counts: list[int], windows: list[tuple[int, int]]) -> tuple[Learned, dict[int, int]]:
    """Steps of so many samples one after the other, and position -> step by walking over all positions."""
    walked: dict[int, int] = {}
    free = (place for place in count() if not any(first <= place < end for first, end in windows))
    rows = []
    for step, samples in enumerate(counts, start=1):
        places = [next(free) for _ in range(samples)]
        walked |= dict.fromkeys(places, step)
        rows.append((step, places[0], end_of(windows, places[0], samples)))
    steps, firsts, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return Learned(steps, firsts, ends, windows), walked


@given(st.lists(st.integers(1, 9), max_size=8), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4))
def test_steps_of_positions_equal_a_walk_over_all(counts: list[int], windows: list[tuple[int, int]]):
    learned, walked = learned_by_hand(counts, [(first, first + length) for first, length in windows])
    assert learned.end == max(walked, default=-1) + 1
    positions = np.arange(learned.end + 9)
    assert learned.step_of(positions).tolist() == [walked.get(place, -1) for place in positions.tolist()]


def test_the_first_step_of_a_source(make_corpus: Callable[..., Raw]):
    index = GlobalIndex(Corpus.open(make_corpus(LENGTHS).path), DataConfig(), sequence=16, seed=3)
    learned, walked = learned_by_hand([4] * 100, [(0, 7), (100, 104)])
    drawn = index.refs(np.arange(500)).sources
    for number, name in enumerate(index.sources):
        steps = [walked[place] for place in np.flatnonzero(drawn == number).tolist() if place in walked]
        assert first_step(index, name, learned) == steps[0]
    assert first_step(index, "nothing", learned) is None
    assert first_step(index, index.sources[0], learned_by_hand([], [])[0]) is None
