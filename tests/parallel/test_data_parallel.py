"""Sums of gradients over ranks: their bits follow from the gradients alone, and they begin beside the backward pass."""

from typing import Any

import pytest

from tests.ranks import RankServer

SUMMING = "tests/parallel/summing.py"


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (3, {}),
        (3, {"bucket_mb": 0.02, "compress": "bf16"}),
        (3, {"data": 1, "expert": 3}),
    ],
    ids=["data", "buckets", "experts"],
)
def test_bits_do_not_depend_on_the_steps_before(run_ranks: RankServer, ranks: int, settings: dict[str, Any]) -> None:
    """So a run that was killed goes on as one that was not. A ring adds up in an order that depends on the place in the
    buffer, so from three ranks on other buckets have other bits.
    """
    for digests in run_ranks(f"{SUMMING}:digests", ranks, settings):
        assert digests == digests[:1] * len(digests)


def test_buckets_are_launched_in_one_order_as_soon_as_those_before_are(run_ranks: RankServer) -> None:
    """Within the last backward pass; what lacks a gradient on a rank, and all behind it, with `finish`."""
    ranks = run_ranks(f"{SUMMING}:launched", 3, 1)
    assert [calls for calls, _ in ranks] == [[0, 3, 0], [0, 0, 3], [0, 3, 0]]
    assert [sums for _, sums in ranks] == [[14.0, 14.0, 10.0]] * 3
