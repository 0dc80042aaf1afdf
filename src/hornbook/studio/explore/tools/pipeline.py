"""Pipeline schedules: the orders that the trainer's ranks execute, timed by the planner's simulation."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from hornbook.errors import UsageError
from hornbook.parallel.axes.pipeline.cuts import stage_costs
from hornbook.parallel.axes.pipeline.forecast import fullest
from hornbook.parallel.axes.pipeline.pass_orders import (
    Durations,
    Pass,
    Schedule,
    bubble,
    plan,
    simulate,
    stages_of,
    step_span,
)
from hornbook.parallel.config import ParallelConfig, PipelineConfig
from hornbook.plan.planned_memory import estimate_memory
from hornbook.plan.planner import vocabulary
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import Preset, explorer, means, settings_of, slider
from hornbook.studio.explore.recipes import MODELS, on, recipe_of
from hornbook.studio.explore.views import Answer, Facts, Span, Table, Timeline, fact

PipelineModel = Annotated[str, Field(max_length=1000, json_schema_extra={"choices": ["even", *MODELS]})]
DRAWN = 4_000
"""Passes that a timeline shows at most."""
NAMES: dict[str, str] = {"F": "forward", "B": "backward", "I": "gradient of inputs", "W": "gradient of weights"}
ORDERS: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev")


class PipelineQuestion(Config):
    """A pipeline, and how long its passes take."""

    schedule: Schedule = means("1f1b", "parallel.pipeline.schedule")
    """The order in which each rank computes its passes."""
    ranks: int = slider(4, 2, 16, "parallel.pipeline.stages")
    """Devices that the blocks are divided over."""
    microbatches: int = slider(8, 1, 64)
    """Parts of a step's batch, which flow through the pipeline one after the other."""
    chunks: int = slider(2, 2, 8)
    """Stages of each rank, for the schedule `interleaved`."""
    model: PipelineModel = "even"
    """Recipe whose blocks are cut into stages, or the path of one of yours; `even`: all stages cost the same."""
    backward: float = slider(2.0, 1.0, 3.0)
    """Time of a backward pass, in forward passes of a rank."""
    message: float = slider(0.0, 0.0, 2.0)
    """Time of a message from a stage to the next, in forward passes of a rank."""


def _config(question: PipelineQuestion, schedule: Schedule) -> PipelineConfig:
    return PipelineConfig(stages=question.ranks, schedule=schedule, chunks=question.chunks)


def _shares(question: PipelineQuestion, schedule: Schedule) -> tuple[list[str], list[float] | None]:
    """(blocks of each stage, its cost as a share of the mean rank's)."""
    pipeline = _config(question, schedule)
    if question.model == "even":
        return [""] * pipeline.all_stages, None
    recipe = recipe_of(question.model)
    vocab, sequence = vocabulary(recipe), recipe.train.sequence
    bounds, shares = stage_costs(ParallelConfig(pipeline=pipeline), recipe.model, vocab, sequence)
    return [f"{low}-{high - 1}" if high - low > 1 else str(low) for low, high in pairwise(bounds)], shares


def _durations(question: PipelineQuestion, schedule: Schedule) -> list[Durations]:
    """Of each stage."""
    stages, half = _config(question, schedule).all_stages, question.backward / 2
    shares = _shares(question, schedule)[1] or [question.ranks / stages] * stages
    return [Durations(each, each * half, each * half, question.message) for each in shares]


def _length(question: PipelineQuestion, schedule: Schedule) -> tuple[float, float]:
    """(bubble, length of the step) as the planner estimates them."""
    durations, chunks = _durations(question, schedule), _config(question, schedule).chunks_per_rank
    works = [each.forward + each.of("B") for each in durations]
    busy = [
        sum(works[each] for each in stages_of(schedule, rank, question.ranks, chunks)) for rank in range(question.ranks)
    ]
    length = step_span(schedule, question.ranks, chunks, question.microbatches, durations, max(busy))
    return question.ranks * length / (question.microbatches * sum(busy)) - 1, length


def _settings(question: PipelineQuestion) -> dict[str, Any]:
    chunks = {"parallel.pipeline.chunks": question.chunks} if question.schedule == "interleaved" else {}
    return settings_of(question) | chunks


def _load(recipe: Recipe) -> Mapping[str, Any]:
    parallel = recipe.parallel
    count = -(-recipe.train.num_microbatches // parallel.data_ranks)
    return {"chunks": parallel.pipeline.chunks, "microbatches": count}


def _gibibytes(question: PipelineQuestion) -> list[float | None]:
    """Bytes of each rank's peak on an H100, with rows of the recipe; None where stages have no model."""
    if question.model == "even":
        return [None] * question.ranks
    words = _settings(question) | {"train.micro_batch": 1}
    sequence = recipe_of(question.model).train.sequence
    words["train.batch_tokens"] = sequence * question.microbatches
    recipe, cluster = on(f"{question.ranks}xH100", question.model, words)
    return [each.peak.total for each in estimate_memory(recipe, vocabulary(recipe), cluster.device)]


def _compare(question: PipelineQuestion) -> Answer:
    """The schedules for whose stages there are blocks."""
    rows = list[list[Any]]()
    for each in ORDERS:
        with suppress(UsageError):
            rows.append([each, *_length(question, each)])
    table = Table(
        title="All schedules on this pipeline",
        note="Timed as the planner does: by the microbatches that fill the pipeline, and the slowest rank's time for "
        "each further one.",
        columns={"schedule": None, "bubble": "share", "length of the step": ""},
        rows=rows,
        chosen=next((number for number, row in enumerate(rows) if row[0] == question.schedule), None),
    )
    return Answer(schedules=table)


@explorer(
    "Pipeline schedules",
    asks="How long do the devices of a pipeline wait, and what does waiting less cost in memory?",
    code=(
        "parallel.axes.pipeline.pass_orders:rank_order",
        "parallel.axes.pipeline.pass_orders:simulate",
        "parallel.axes.pipeline.cuts:stage_costs",
        "plan.planned_memory:estimate_memory",
    ),
    presets=(
        Preset("PipeDream-flush, 4 ranks", {"ranks": 4, "microbatches": 8}, "Narayanan et al. 2021, figure 4"),
        Preset("GPT-3, 16 stages", {"ranks": 16, "microbatches": 64, "model": "gpt3-175b"}, "arXiv 2005.14165"),
        Preset("Zero bubble", {"schedule": "zb-h1", "ranks": 4, "microbatches": 12}, "Qi et al. 2024, figure 2"),
    ),
    settings=_settings,
    load=_load,
    further=_compare,
)
def pipeline(question: PipelineQuestion) -> Answer:
    """A pipeline gives each device some blocks of the model. A device can only start when the one before it has sent
    its result, so devices wait at the beginning and at the end of a step: the bubble. More microbatches make the bubble
    smaller; schedules that start backward passes early keep fewer activations; schedules that compute the gradient of
    the weights later fill the bubble with it."""
    pipeline = _config(question, question.schedule)
    layout = question.ranks, pipeline.chunks_per_rank
    orders = plan(question.schedule, *layout, question.microbatches)
    timed = simulate(orders, _durations(question, question.schedule))
    idle, end = bubble(timed), max(each.end for passes in timed for each in passes)
    (blocks, _), peaks = _shares(question, question.schedule), _gibibytes(question)
    rows, few = list[list[Any]](), min(question.microbatches, 4 * question.ranks)
    for rank, passes in enumerate(timed):
        own = stages_of(question.schedule, rank, *layout)
        busy = sum(each.end - each.start for each in passes)
        most = fullest(question.schedule, rank, *layout, few)
        held = max(map(sum, most)) / pipeline.chunks_per_rank
        computed = " + ".join(filter(None, (blocks[each] for each in own)))
        rows.append([f"rank {rank}", computed, 1 - busy / end, held, peaks[rank]])
    return Answer(
        summary=Facts(
            title="Waiting",
            facts=[
                fact("bubble, as a share of the work", idle, "share"),
                fact("share of the step that ranks wait", idle / (1 + idle), "share"),
                fact("length of the step, in forward passes", end),
                fact("microbatches that a rank holds at most", max(row[3] for row in rows)),
            ],
        ),
        timeline=_timeline(timed, question.ranks),
        ranks=Table(
            title="Ranks",
            note="Microbatches are those whose activations a rank keeps at once, in full stages. "
            "Memory is the planned peak on H100s, with a row in each microbatch.",
            columns={"rank": None, "blocks": None, "waits": "share", "microbatches at once": "", "memory": "bytes"},
            rows=rows,
        ),
    )


def _timeline(timed: list[list[Pass]], ranks: int) -> Timeline:
    """The passes, the earliest where there are too many."""
    spans = [
        Span(row=rank, start=each.start, end=each.end, kind=NAMES[each.action.kind], text=str(each.action.microbatch))
        for rank, passes in enumerate(timed)
        for each in passes
    ]
    note = "The number is the microbatch."
    if len(spans) > DRAWN:
        spans = sorted(spans, key=lambda each: each.start)[:DRAWN]
        note += f" The first {DRAWN:,} passes are drawn."
    return Timeline(
        title="One step, time to the right", note=note, rows=[f"rank {each}" for each in range(ranks)], spans=spans
    )
