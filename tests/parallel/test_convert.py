"""The state of one optimizer as that of another, on ranks that share parameters: what one process makes, to the bit."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from tests.parallel.trajectory import LAYOUTS

DIVIDED = {
    **LAYOUTS,
    "experts": {"data": 1, "expert": 2},
    "experts and shards": {"data": 2, "expert": 2, "shard": "everything"},
}
ADDRESS = "tests/parallel/converting.py:convert_along"


@pytest.fixture(scope="module")
def convert_alone(run_ranks: Any) -> Callable[..., dict[str, Any]]:
    """What one process makes, by kinds."""
    return cache(lambda *kinds: run_ranks(ADDRESS, 1, kinds, {})[0])


@pytest.mark.parametrize(
    "kinds", [["adamw", "adafactor"], ["adafactor", "rmsprop"], ["adamw", "lamb", "adamw"], ["adamw", "sgd", "lion"]]
)
@pytest.mark.parametrize(
    ("world", "layout"), [(2, "everything"), (2, "none"), (4, "hybrid"), (2, "experts"), (4, "experts and shards")]
)
def test_ranks_convert_as_one_process_does(
    run_ranks: Any, convert_alone: Callable[..., dict[str, Any]], world: int, layout: str, kinds: list[str]
) -> None:
    alone = convert_alone(*kinds)
    ranks = run_ranks(ADDRESS, world, kinds, DIVIDED[layout])
    assert all(rank["shapes"] == alone["shapes"] for rank in ranks)
    assert all(rank["size"] == pytest.approx(alone["size"]) for rank in ranks)
    for name, shape in alone["shapes"].items():
        whole, places = torch.full(shape, torch.nan), 0
        for rank in ranks:
            for start, values in [rank["saved"][name]] if name in rank["saved"] else []:
                part, places = torch.tensor(values), places + 1
                if part.numel():
                    whole[tuple(slice(a, a + b) for a, b in zip(start, part.shape, strict=True))] = part
        assert places
        assert torch.equal(whole, torch.tensor(alone["saved"][name][1]).view(shape)), name
