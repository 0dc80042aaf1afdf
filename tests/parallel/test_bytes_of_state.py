"""Bytes that ranks hold of weights, gradients and moments, beside their formula (`state_bytes`)."""

from typing import Any

import pytest

from hornbook.model.config.flops import state_bytes
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.counts.held_counts import held_values
from tests.parallel.holding import ROWS, SIZES
from tests.ranks import RankServer

LAYOUTS: list[dict[str, Any]] = [
    {"data": 2},
    {"data": 2, "shard": "optimizer"},
    {"data": 2, "shard": "gradients"},
    {"data": 2, "shard": "everything"},
    {"expert": 2},
    {"expert": 3},
    {"tensor": 2},
    {"data": 2, "expert": 2, "shard": "everything"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_hold_what_the_formula_says(run_ranks: RankServer, layout: dict[str, Any]) -> None:
    parallel = ParallelConfig.model_validate(layout)
    (held,) = held_values(SIZES, ROWS, parallel, sequence=24)
    expected = sum(state_bytes(held, parallel, AdamW()).values())
    for found in run_ranks("tests/parallel/holding.py:held", parallel.world, layout):
        assert found == pytest.approx(expected, rel=0.01)
