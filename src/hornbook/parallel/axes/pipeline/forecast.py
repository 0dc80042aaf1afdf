"""What a pipeline comes to before it runs: its stages, the time in which ranks wait, a chart of its passes, how many
microbatches a rank holds."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import ge

from hornbook.model.config.model_config import ModelConfig
from hornbook.parallel.axes.pipeline.cuts import Bounds, stage_costs
from hornbook.parallel.axes.pipeline.pass_orders import (
    Schedule,
    bubble,
    chart,
    plan,
    rank_of,
    rank_order,
    simulate,
    stages_of,
)
from hornbook.parallel.config import ParallelConfig

CHARTED = 12
"""Microbatches that a chart shows at most."""


@dataclass(frozen=True)
class PipelinePlan:
    """The simulated step of a pipeline, by operations of stages; backward takes twice as long as forward."""

    schedule: str
    ranks: int
    bounds: Bounds
    microbatches: int
    """Of a step, through each pipeline."""
    bubble: float
    """Time in which ranks wait, as a share of the time in which they compute."""
    chart: str
    """One line for each rank, time to the right, of the first microbatches."""
    stage_ranks: tuple[int, ...]
    """The rank of each stage."""

    def __str__(self) -> str:
        stages = [f"{first}-{end - 1}" if end - first > 1 else str(first) for first, end in pairwise(self.bounds)]
        held = [
            "+".join(stage for stage, at in zip(stages, self.stage_ranks, strict=True) if at == rank)
            for rank in range(self.ranks)
        ]
        waits = self.bubble / (1 + self.bubble)
        return (
            f"{self.ranks} ranks, blocks {' | '.join(held)}; {self.schedule}, {self.microbatches} microbatches: ranks "
            f"wait {100 * waits:.0f} % of a step (bubble {self.bubble:.3f})"
        )

    @property
    def warning(self) -> str:
        """ "" unless there are fewer microbatches than ranks."""
        if self.microbatches >= self.ranks:
            return ""
        return (
            f"{self.microbatches} microbatches do not fill a pipeline of {self.ranks} ranks, which wait for "
            f"{self.bubble:.2f} times as long as they compute: lower train.micro_batch, or raise train.batch_tokens"
        )


def plan_pipeline(
    parallel: ParallelConfig, model: ModelConfig, vocab: int, sequence: int, microbatches: int
) -> PipelinePlan | None:
    """The plan for so many microbatches of a step, over all ranks; None without a pipeline."""
    pipeline = parallel.pipeline
    if pipeline.stages == 1:
        return None
    bounds, shares = stage_costs(parallel, model, vocab, sequence)
    count = -(-microbatches // parallel.data_ranks)
    layout = pipeline.schedule, pipeline.stages, pipeline.chunks_per_rank
    timed = simulate(plan(*layout, count), shares=shares)
    shown = simulate(plan(*layout, min(count, CHARTED)))
    ranks = tuple(rank_of(pipeline.schedule, stage, pipeline.stages) for stage in range(pipeline.all_stages))
    return PipelinePlan(pipeline.schedule, pipeline.stages, bounds, count, bubble(timed), chart(shown), ranks)


@lru_cache(1024)
def fullest(schedule: Schedule, rank: int, ranks: int, chunks: int, microbatches: int) -> list[tuple[int, ...]]:
    """Of a rank's stages, the first of the model first, how many microbatches they hold at once, at the times of which
    one holds the most, whatever a microbatch takes in each stage."""
    stages = stages_of(schedule, rank, ranks, chunks)
    held, found = dict.fromkeys(sorted(stages), 0), list[tuple[int, ...]]()
    for action in rank_order(schedule, rank, ranks, chunks, microbatches):
        held[action.stage] += {"F": 1, "B": -1, "W": -1, "I": 0}[action.kind]
        now = tuple(held.values())
        if not any(_covers(each, now) for each in found):
            found = [*(each for each in found if not _covers(now, each)), now]
    return found


def _covers(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(map(ge, one, other))
