"""Layouts of a run over data, tensor, pipeline, context and expert ranks: the planner's estimate and its search."""

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any, Literal

from hornbook.errors import UsageError
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.planner import estimate_layout, layout_name, plan_run, vocabulary
from hornbook.plan.search.plan_result import Layout, capacity
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import Preset, explorer, means, settings_of, slider
from hornbook.studio.explore.recipes import SHARDS, Device, Model, on, recipe_of, sequence_words
from hornbook.studio.explore.views import Answer, Bar, Bars, Cell, Curves, Facts, Grid, Line, Table, fact

AXES: tuple[str, ...] = ("pipeline", "replica", "shard", "context", "tensor", "expert")
"""As `hornbook.parallel.world.AXES`, which needs torch: outermost first, so that ranks that differ in the last axis
alone have neighbouring numbers."""
SHOWN = 64
"""Ranks that the grid has at most."""
TOP = 12
"""Layouts that the search lists."""


class LayoutsQuestion(Config):
    """A model on a cluster, and a layout of its ranks."""

    model: Model = "llama-3-8b"
    device: Device = "H100"
    data: int = slider(4, 1, 256, "parallel.data", logarithmic=True)
    """Ranks that compute other rows (`parallel.data`)."""
    tensor: int = slider(4, 1, 16, "parallel.tensor")
    """Ranks that divide the matrices of each layer (`parallel.tensor`)."""
    pipeline: int = slider(2, 1, 32, "parallel.pipeline.stages")
    """Ranks that hold other blocks (`parallel.pipeline.stages`)."""
    context: int = slider(1, 1, 16, "parallel.context.ranks")
    """Ranks that divide each sequence (`parallel.context.ranks`)."""
    expert: int = slider(1, 1, 16, "parallel.expert")
    """Ranks that divide the experts of each layer (`parallel.expert`)."""
    shard: Literal["none", "zero-1", "zero-3"] = means("zero-1", "parallel.shard", SHARDS)
    """What data ranks share (`parallel.shard`)."""
    recompute: Literal["none", "selective", "block"] = means("none", "parallel.recompute.kind")
    """What backward computes again (`parallel.recompute`)."""
    batch: int = slider(512, 1, 4096, logarithmic=True)
    """Rows of a step (`train.batch_tokens` / `train.sequence`)."""
    micro_batch: int = slider(1, 1, 16, "train.micro_batch")
    """Rows that a rank computes at once (`train.micro_batch`)."""
    sequence: int = slider(4096, 16, 131072, "train.sequence", logarithmic=True)
    """Tokens of a row (`train.sequence`)."""


def _settings(question: LayoutsQuestion) -> dict[str, Any]:
    found = settings_of(question) | sequence_words(question.model, question.sequence)
    found["train.batch_tokens"] = question.batch * question.sequence
    return found | ({"parallel.shard": "none"} if question.data == 1 else {})


def _world(question: LayoutsQuestion) -> int:
    return question.data * question.tensor * question.pipeline * question.context * question.expert


def _planned(question: LayoutsQuestion) -> tuple[Layout, Recipe, Cluster]:
    if question.expert > 1 and not isinstance(recipe_of(question.model).model.mlp, ExpertsConfig):
        raise UsageError(f"expert = {question.expert}: {question.model} has no experts; take mixtral-8x7b, or expert 1")
    recipe, cluster = on(f"{_world(question)}x{question.device}", question.model, _settings(question))
    return estimate_layout(recipe, vocabulary(recipe), cluster), recipe, cluster


def axis_sizes(parallel: ParallelConfig) -> dict[str, int]:
    """Axis -> ranks along it, in the order of AXES."""
    replicas = parallel.replicas if parallel.shard != "none" else parallel.data
    sizes = (parallel.pipeline.stages, replicas, parallel.data // replicas, parallel.context.ranks)
    return dict(zip(AXES, (*sizes, parallel.tensor, parallel.expert), strict=True))


def _grid(parallel: ParallelConfig, node: int) -> Grid:
    """Ranks in rows of one machine; colours are pipeline stages, texts the place along the other wide axes."""
    sizes = axis_sizes(parallel)
    wide: list[str] = [name for name, size in sizes.items() if size > 1]
    places = list(product(*(range(size) for size in sizes.values())))[:SHOWN]
    cells = list[list[Cell]]()
    for rank, place in enumerate(places):
        at: dict[str, int] = dict(zip(AXES, place, strict=True))
        text = " ".join(f"{name[0]}{at[name]}" for name in wide if name != "pipeline") or str(rank)
        label = f"rank {rank}: " + (", ".join(f"{name} {at[name]}" for name in wide) or "the only one")
        if rank % node == 0:
            cells.append([])
        cells[-1].append(Cell(text=text, group=at["pipeline"], label=label))
    columns = [str(each) for each in range(min(node, len(places)))]
    cells[-1] += [Cell()] * (len(columns) - len(cells[-1]))
    words = ", ".join(f"{name[0]} {name}" for name in wide if name != "pipeline")
    more = f" The first {SHOWN} of {prod(sizes.values())} ranks." if prod(sizes.values()) > SHOWN else ""
    note = f"A row is a machine, a colour a pipeline stage{f'; {words}' if words else ''}.{more}"
    return Grid(
        title="Ranks", note=note, rows=[f"machine {each}" for each in range(len(cells))], columns=columns, cells=cells
    )


def _search(question: LayoutsQuestion) -> Answer:
    """The planner's own search over all layouts of this cluster."""
    now, recipe, cluster = _planned(question)
    free = recipe.model_copy(update={"train": recipe.train.model_copy(update={"micro_batch": "auto"})})
    plan = plan_run(free, cluster, search=True, top=TOP, remedy=False)
    front = [each for each in plan.layouts if each.pareto]
    shown = {"layouts found": plan.layouts, "no other is better in both": front, "this one": [now]}
    curves = [
        Line(
            name=name,
            x=[each.step.total for each in layouts],
            y=[each.worst.peak.total for each in layouts],
            points=True,
            labels=[each.name for each in layouts],
        )
        for name, layouts in shown.items()
        if layouts
    ]
    rows = [
        [each.name, each.micro_batch, each.recompute, each.worst.peak.total, each.step.total, each.mfu]
        for each in plan.layouts
    ]
    return Answer(
        front=Curves(title="Time and memory", curves=curves, x="seconds of a step", x_unit="seconds", y_unit="bytes"),
        best=Table(
            title=f"What `hornbook plan --cluster {cluster}` finds",
            note=" ".join(plan.reasons),
            columns={
                "layout": None,
                "rows at once": "",
                "recompute": None,
                "peak": "bytes",
                "step": "seconds",
                "MFU": "share",
            },
            rows=rows,
        ),
    )


def _load(recipe: Recipe) -> Mapping[str, Any]:
    train = recipe.train
    return {"batch": max(train.batch_tokens // train.sequence, 1), "micro_batch": train.micro_rows}


@explorer(
    "Layouts of ranks",
    asks="How do data, tensor, pipeline, context and expert ranks divide a model, and which division is fastest?",
    code=("plan.planner:estimate_layout", "plan.planner:plan_run", "plan.step_time:estimate_step"),
    presets=(
        Preset("Llama 3 8B on 32", {}),
        Preset(
            "GPT-3 on 1,024",
            {
                "model": "gpt3-175b",
                "device": "A100",
                "data": 16,
                "tensor": 8,
                "pipeline": 8,
                "batch": 1536,
                "sequence": 2048,
            },
            "arXiv 2104.04473",
        ),
        Preset(
            "Mixtral, experts divided",
            {"model": "mixtral-8x7b", "data": 4, "tensor": 1, "pipeline": 1, "expert": 8, "shard": "zero-1"},
        ),
    ),
    settings=_settings,
    load=_load,
    further=_search,
)
def layouts(question: LayoutsQuestion) -> Answer:
    """A large model is divided over GPUs in several ways at once. Tensor ranks divide each matrix and always talk,
    so they belong into one machine. Pipeline ranks hold other layers and send little. Data ranks compute other rows and
    sum gradients once in a step. Context ranks divide long sequences, expert ranks hold other experts."""
    layout, recipe, cluster = _planned(question)
    step = {name: seconds for name, seconds in layout.step if seconds}
    peak = layout.worst.peak.total
    return Answer(
        summary=Facts(
            title=f"{layout_name(recipe.parallel)} on {cluster}",
            facts=[
                fact("GPUs", _world(question)),
                fact("peak of the fullest rank", peak, "bytes"),
                fact("it fits", "yes" if layout.fits else f"no: {capacity(cluster) / 2**30:.0f} GiB may be filled"),
                fact("a step", layout.step.total, "seconds"),
                fact("tokens per second", layout.tokens_per_second, "count"),
                fact("MFU", layout.mfu, "share"),
                fact("HFU", layout.hfu, "share"),
            ],
        ),
        step=Bars(title="Where the time of a step goes", bars=[Bar(name="step", parts=step)], unit="seconds"),
        ranks=_grid(recipe.parallel, cluster.node),
    )
