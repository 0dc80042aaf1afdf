"""Where blocks are cut into stages: against the plain recurrence, and quickly for deep models."""

import random
from itertools import accumulate, combinations, pairwise

import pytest

from hornbook.errors import UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.parallel.axes.pipeline import cuts
from hornbook.parallel.axes.pipeline.cuts import cut_by_cost, stage_blocks, stage_costs
from hornbook.parallel.config import ParallelConfig

MTP = {"mtp": {"kind": "sequential", "depth": 2}}


def plain(costs: list[float], stages: int, last: float) -> tuple[int, ...]:
    """Of each number of first blocks the best cut, by the most expensive stage, the sum of squares, and the bounds."""
    sums = [0.0, *accumulate(costs)]
    best = {0: (0.0, 0.0, (0,))}
    for stage in range(stages):
        beside = last if stage == stages - 1 else 0.0
        best = {
            end: min(
                (max(most, cost), squares + cost * cost, (*bounds, end))
                for begin, (most, squares, bounds) in best.items()
                if begin < end
                for cost in [sums[end] - sums[begin] + beside]
            )
            for end in range(stage + 1, len(costs) + 1)
        }
    return best[len(costs)][2]


@pytest.mark.parametrize("kinds", [[1.0], [1e9, 1.5e9, 3e9], [0.0, 1.0, 7.0]])
@pytest.mark.parametrize("head", [0.0, 0.3, 2.5, 30.0])
def test_cuts_are_those_of_the_plain_recurrence(kinds: list[float], head: float) -> None:
    draw = random.Random(len(kinds) + head)
    for _ in range(12):
        costs = [draw.choice(kinds) for _ in range(draw.randint(1, 16))]
        stages, last = draw.randint(1, len(costs)), head * max(kinds)
        assert cut_by_cost(costs, stages, last) == plain(costs, stages, last)


def test_no_cut_has_a_cheaper_worst_stage() -> None:
    draw = random.Random(7)
    costs = [draw.random() for _ in range(10)]

    def worst(bounds: tuple[int, ...]) -> float:
        sizes = [sum(costs[first:end]) for first, end in pairwise(bounds)]
        return max([*sizes[:-1], sizes[-1] + 0.5])

    every = [(0, *inner, 10) for inner in combinations(range(1, 10), 3)]
    assert worst(cut_by_cost(costs, 4, 0.5)) == pytest.approx(min(map(worst, every)))


def test_deep_models_are_cut_with_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain recurrence tries each begin of each end of each stage: some 20 million, of 512 blocks in 256 stages."""
    tries, prefix = 0, cuts._Prefix

    def counted(*fields: float) -> object:
        nonlocal tries
        tries += 1
        return prefix(*fields)

    monkeypatch.setattr(cuts, "_Prefix", counted)
    bounds = cut_by_cost([123456789.0] * 512, 256, 1.5e8)
    assert tries < 200_000
    assert len(bounds) == 257
    assert max(end - first for first, end in pairwise(bounds)) == 3


def test_blocks_of_multi_token_prediction_make_the_last_stage_short() -> None:
    """Two blocks more, two heads and what stands before the blocks: about as much as three blocks."""
    plain, further = (ModelConfig.model_validate({"layers": 8, "width": 256, "heads": 4} | each) for each in ({}, MTP))
    parallel = ParallelConfig.model_validate({"pipeline": 2})
    ((ends, _), (bounds, costs)) = (stage_costs(parallel, each, 1024, 128) for each in (plain, further))
    assert (ends, bounds) == ((0, 4, 8), (0, 6, 8))
    assert stage_blocks(bounds, further) == [range(6), range(6, 10)]
    assert sum(costs) == pytest.approx(2)
    assert max(costs) < 1.15


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(UsageError, match="2 blocks cannot be cut into 3 stages"):
        cut_by_cost([1.0, 1.0], 3)
