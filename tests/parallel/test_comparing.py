"""Objectives that compare answers: ranks compute what one process computes."""

from typing import Any

import pytest


@pytest.mark.parametrize(("kind", "shard"), [("dpo", "none"), ("kto", "none"), ("orpo", "everything")])
def test_ranks_compute_what_one_process_does(run_ranks: Any, kind: str, shard: str) -> None:
    (alone,) = run_ranks("tests/parallel/comparing.py:compare", 1, kind, {})
    for rank in run_ranks("tests/parallel/comparing.py:compare", 2, kind, {"shard": shard}):
        assert rank == pytest.approx(alone, rel=1e-5, abs=1e-5)
    assert alone["norm"] > 0.01
