"""Documents back to positions: the inverse of `documents`, by looking at every position."""

from collections.abc import Callable

import numpy as np
import pytest

from hornbook.data.config import DataConfig
from hornbook.data.corpus import Corpus
from hornbook.data.global_index import GlobalIndex
from hornbook.data.tracing import all_streams, find_documents, first_position, positions_of_documents
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


def test_the_first_position_of_a_source(make_corpus: Callable[..., Raw]):
    index = GlobalIndex(Corpus.open(make_corpus(LENGTHS).path), DataConfig(), sequence=16, seed=3)
    drawn = index.draws(np.arange(500)).sources
    for number, name in enumerate(index.sources):
        assert first_position(index, name, 500) == np.flatnonzero(drawn == number)[0]
    assert first_position(index, "nothing", 500) is None
