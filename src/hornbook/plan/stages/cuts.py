"""Where the blocks of a model are cut into stages: evenly by cost, or as `parallel.pipeline.cuts` says."""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

from hornbook.errors import UsageError
from hornbook.model.config.flops import block_costs
from hornbook.model.config.model import ModelConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.memo import kept_by_model

Bounds = tuple[int, ...]
"""First block of each stage, then the number of blocks; those of an encoder come first."""


def cut_by_cost(costs: Sequence[float], stages: int, last: float = 0.0) -> Bounds:
    """The cut whose most expensive stage is cheapest, and of several such the evenest.

    costs: of each block. last: cost of the last stage beside its blocks, which is the head's.
    """
    return _cut(tuple(costs), stages, last)


@cache
def _cut(costs: tuple[float, ...], stages: int, last: float) -> Bounds:
    sums = [0.0, *accumulate(costs)]
    count = len(costs)
    if count < stages:
        raise UsageError(f"parallel.pipeline: {count} blocks cannot be cut into {stages} stages")
    # best[end]: (most expensive stage, sum of squares, bounds) of the stages so far over the first `end` blocks
    best: list[tuple[float, float, Bounds] | None] = [(0.0, 0.0, (0,)), *[None] * count]
    for stage in range(stages):
        beside = last if stage == stages - 1 else 0.0
        found: list[tuple[float, float, Bounds] | None] = [None] * (count + 1)
        for end in range(stage + 1, count - (stages - 1 - stage) + 1):
            highest, options = float("inf"), []
            for begin in range(end - 1, stage - 1, -1):
                if (before := best[begin]) is not None:
                    cost = sums[end] - sums[begin] + beside
                    if cost > highest:  # earlier begins cost more
                        break
                    highest = min(highest, max(before[0], cost))
                    options.append((max(before[0], cost), before[1] + cost * cost, (*before[2], end)))
            found[end] = min(options, default=None)
        best = found
    answer = best[count]
    assert answer is not None
    return answer[2]


_block_costs = kept_by_model(block_costs)


def stage_costs(parallel: ParallelConfig, model: ModelConfig, vocab: int, sequence: int) -> tuple[Bounds, list[float]]:
    """The cut of a configuration, and the cost of each stage as a share of the mean rank's."""
    pipeline = parallel.pipeline
    return _stage_costs(model, vocab, sequence, pipeline.stages, pipeline.all_stages, tuple(pipeline.cuts))


@kept_by_model
def _stage_costs(
    model: ModelConfig, vocab: int, sequence: int, ranks: int, stages: int, cuts: tuple[int, ...]
) -> tuple[Bounds, list[float]]:
    costs, head = _block_costs(model, vocab, sequence)
    bounds = (0, *cuts, len(costs)) if cuts else cut_by_cost(costs, stages, head)
    found = [sum(costs[first:end]) for first, end in pairwise(bounds)]
    found[-1] += head
    return bounds, [each * ranks / sum(found) for each in found]


def settle_cuts(parallel: ParallelConfig, model: ModelConfig, vocab: int, sequence: int) -> ParallelConfig:
    """The configuration with the cuts that follow from costs, where it gives none."""
    pipeline = parallel.pipeline
    if pipeline.stages == 1 or pipeline.cuts:
        return parallel
    bounds, _ = stage_costs(parallel, model, vocab, sequence)
    return parallel.model_copy(update={"pipeline": pipeline.model_copy(update={"cuts": list(bounds[1:-1])})})
