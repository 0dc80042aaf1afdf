"""Where the blocks of a model are cut into stages: evenly by cost, or as `parallel.pipeline.cuts` says."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from hornbook.errors import UsageError
from hornbook.model.config.flops import block_costs
from hornbook.model.config.model_config import ModelConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.settings.fields import kept_by_config

Bounds = tuple[int, ...]
"""First block of each stage, then the number of blocks; those of an encoder come first."""
HALVINGS = 40
"""Of the costs between which the least bottleneck is looked for."""
ROUNDING = 1e-9
"""Of the sum of costs: more than their sums can be off."""


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
    # end -> the best cut of the blocks before it into the stages so far
    best, steps = {0: _Prefix(0.0, 0.0, 0, 0)}, list[dict[int, _Prefix]]()
    for stage, ends in enumerate(_ends(sums, stages, last)):
        beside = last if stage == stages - 1 else 0.0
        found = dict[int, _Prefix]()
        for end in ends:
            highest, options = float("inf"), list[_Prefix]()
            for begin in range(end - 1, stage - 1, -1):
                cost = sums[end] - sums[begin] + beside
                if cost > highest:  # earlier begins cost more
                    break
                if (before := best.get(begin)) is not None:
                    most = max(before.most, cost)
                    highest = min(highest, most)
                    options.append(_Prefix(most, before.squares + cost * cost, before.order, begin))
            if options:
                found[end] = min(options)
        ordered = sorted(found, key=lambda end: (found[end].order, end))
        best = {end: found[end]._replace(order=place) for place, end in enumerate(ordered)}
        steps.append(best)
    bounds = [count]
    for each in reversed(steps):
        bounds.append(each[bounds[-1]].begin)
    return tuple(reversed(bounds))


class _Prefix(NamedTuple):
    """The best cut of the first blocks into some stages: by the most expensive one, then by the sum of squares, then by
    its bounds."""

    most: float
    squares: float
    order: int
    """Place of its bounds among those of its number of stages; while options are compared, of those before the last."""
    begin: int
    """First block of the last stage."""


def _ends(sums: Sequence[float], stages: int, last: float) -> list[range]:
    """Of each stage, where it may end if no stage is to cost more than it must, or hardly more: the rest need not be
    tried. sums: costs of the blocks before each."""
    count = len(sums) - 1

    def latest(limit: float) -> list[int]:
        found = [0]
        for stage in range(1, stages):
            found.append(min(bisect_right(sums, sums[found[-1]] + limit) - 1, count - stages + stage))
        return found

    def suffices(limit: float) -> bool:
        ends = latest(limit)
        return sums[count] - sums[ends[-1]] + last <= limit and all(begin < end for begin, end in pairwise(ends))

    low, high = 0.0, sums[count] + last
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    high += ROUNDING * sums[count]
    earliest = [count]
    for stage in range(stages - 1, 0, -1):
        limit = high - last * (stage == stages - 1)
        earliest.append(max(bisect_left(sums, sums[earliest[-1]] - limit), stage))
    return [range(first, end + 1) for first, end in zip(earliest[::-1], [*latest(high)[1:], count], strict=True)]


_block_costs = kept_by_config(block_costs)


def stage_costs(parallel: ParallelConfig, model: ModelConfig, vocab: int, sequence: int) -> tuple[Bounds, list[float]]:
    """The cut of a configuration, and the cost of each stage as a share of the mean rank's."""
    pipeline = parallel.pipeline
    return _stage_costs(model, vocab, sequence, pipeline.stages, pipeline.all_stages, tuple(pipeline.cuts))


@kept_by_config
def _stage_costs(
    model: ModelConfig, vocab: int, sequence: int, ranks: int, stages: int, cuts: tuple[int, ...]
) -> tuple[Bounds, list[float]]:
    costs, head = _block_costs(model, vocab, sequence)
    bounds = (0, *cuts, len(costs)) if cuts else cut_by_cost(costs, stages, head)
    found = [sum(costs[first:end]) for first, end in pairwise(bounds)]
    found[-1] += head
    return bounds, [each * ranks / sum(found) for each in found]


def stage_blocks(bounds: Bounds, model: ModelConfig) -> list[range]:
    """Blocks of each stage; those of multi-token prediction are behind all others, on the last one."""
    return [range(*each) for each in pairwise((*bounds[:-1], bounds[-1] + model.mtp.depth))]


def settle_cuts(parallel: ParallelConfig, model: ModelConfig, vocab: int, sequence: int) -> ParallelConfig:
    """The configuration with the cuts that follow from costs, where it gives none."""
    pipeline = parallel.pipeline
    if pipeline.stages == 1 or pipeline.cuts:
        return parallel
    bounds, _ = stage_costs(parallel, model, vocab, sequence)
    return parallel.model_copy(update={"pipeline": pipeline.model_copy(update={"cuts": list(bounds[1:-1])})})
