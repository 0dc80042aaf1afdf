"""ZeRO: bytes that each rank holds, and bytes that cross the ranks, by stage."""

from collections.abc import Mapping
from typing import Any, Literal

from hornbook.model.config.flops import state_bytes
from hornbook.model.config.parameter_count import count_parameters
from hornbook.optim.config.optim import AdamW, AdamW8bit
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.devices.collective_times import group
from hornbook.plan.devices.device_rates import rates_of
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import vocabulary
from hornbook.plan.update import state_bytes_per_value
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import Preset, explorer, means, settings_of, slider
from hornbook.studio.explore.recipes import SHARDS, Device, recipe_of
from hornbook.studio.explore.views import Answer, Bar, Bars, Cell, Columns, Grid, Table

STAGES = {"ddp" if name == "none" else name: shard for name, shard in SHARDS.items()}
PAPER = {"weights": 2, "gradients": 2, "optimizer": 12}
"""Bytes per parameter of 16-bit training with float32 copies and Adam's moments (arXiv 1910.02054, section 3.1)."""
SEQUENCE = 256
SHOWN = 16
"""Ranks that the picture of blocks has at most."""


class ZeroQuestion(Config):
    """A model on data ranks."""

    parameters: float = slider(7.5e9, 1e4, 1e12, logarithmic=True)
    """Trained values of the model."""
    ranks: int = slider(64, 1, 1024, "parallel.data", logarithmic=True)
    """Data ranks that share what the stage divides (`parallel.data`)."""
    device: Device = "A100"
    """The kind of GPU, for the time of messages."""
    precision: Literal["bf16", "bf16-pure"] = "bf16"
    """hornbook's bf16 keeps weights and gradients in 32 bits, bf16-pure in 16."""
    optimizer: Literal["adamw", "adamw8bit"] = means("adamw", "optim.kind")
    """adamw keeps two moments for each weight, adamw8bit keeps them in 8 bits."""


def paper_bytes(parameters: float, ranks: int, stage: int) -> dict[str, float]:
    """Bytes of a rank by category, as in figure 1 of the paper: stage n divides the last n of PAPER's categories."""
    cut = list(PAPER)[len(PAPER) - stage :]
    return {name: parameters * size / (ranks if name in cut else 1) for name, size in PAPER.items()}


def _optim(question: ZeroQuestion) -> OptimizerConfig:
    return AdamW() if question.optimizer == "adamw" else AdamW8bit()


def _item(question: ZeroQuestion) -> int:
    """Bytes of a weight and of its gradient."""
    return 2 if question.precision == "bf16-pure" else 4


def _held(question: ZeroQuestion, shard: Any, moments: int | None = None) -> dict[str, float]:
    """Bytes of a rank by category; moments: of all weights, by default as if these were one large matrix."""
    parallel = ParallelConfig(data=question.ranks, shard=shard if question.ranks > 1 else "none")
    values, item = round(question.parameters), _item(question)
    moments = _optim(question).state_bytes(values, item) if moments is None else moments
    found = state_bytes(values, parallel, _optim(question), item, moments)
    return {"weights": found["weights"], "gradients": found["gradients"], "optimizer": found["moments"]}


def _traffic(question: ZeroQuestion) -> list[list[Any]]:
    """Bytes that a rank sends in a step of one microbatch, and the seconds that takes if nothing hides it."""
    cluster = parse_cluster(f"{question.ranks}x{question.device}")
    rates = rates_of(cluster.device, "bf16")
    over = group(cluster, question.ranks, 1, rates.link, rates.network)
    weights, gradients = _item(question) * question.parameters, 4 * question.parameters
    share, rows = (question.ranks - 1) / question.ranks, list[list[Any]]()
    for name in STAGES:
        gathers = {"zero-3": 2}.get(name, 1)
        # An all-reduce is a reduce-scatter and a gather, here of gradients.
        sent = gathers * (gradients if name == "ddp" else weights) + gradients
        seconds = gathers * over.gather(gradients if name == "ddp" else weights) + over.gather(gradients)
        rows.append([name, share * sent, share * sent / weights, seconds])
    return rows


def _blocks(question: ZeroQuestion) -> Grid:
    """Which ranks hold what: each category is a column, filled by the share of it that a rank holds."""
    ranks = min(question.ranks, SHOWN)
    columns, cells = list[str](), [list[Cell]() for _ in range(ranks)]
    for stage, name in enumerate(STAGES):
        cut = list(PAPER)[len(PAPER) - stage :]
        for number, category in enumerate(PAPER):
            columns.append(f"{name} {category[0].upper()}")
            is_cut = category in cut
            share = f"1/{question.ranks}" if is_cut else "all"
            for rank in range(ranks):
                label = f"rank {rank} holds {share} of {category}"
                cells[rank].append(Cell(group=None if is_cut else number, text="·" if is_cut else "", label=label))
    note = f"W weights, G gradients, O optimizer. Filled: the rank holds all of it; a dot: 1/{question.ranks} of it."
    return Grid(
        title="Who holds what", note=note, rows=[f"rank {each}" for each in range(ranks)], columns=columns, cells=cells
    )


def _settings(question: ZeroQuestion) -> dict[str, Any]:
    """With a row of the recipe for each rank."""
    rows = {"train.micro_batch": 1, "train.sequence": SEQUENCE, "train.batch_tokens": SEQUENCE * question.ranks}
    return settings_of(question) | rows | {"parallel.shard": "everything" if question.ranks > 1 else "none"}


def _load(recipe: Recipe) -> Mapping[str, Any]:
    return {
        "parameters": count_parameters(recipe.model, vocabulary(recipe)),
        "precision": "bf16-pure" if recipe.train.precision == "bf16-pure" else "bf16",
    }


REAL_RANKS = 4


def _measure(question: ZeroQuestion) -> Answer:
    """A step of the recipe `tiny` on four processes at each stage: what they hold and send."""
    from hornbook.studio.explore.real import on_ranks

    rows, messages = list[list[Any]](), list[list[Any]]()
    words = {"train.micro_batch": 1, "train.batch_tokens": REAL_RANKS * SEQUENCE, "train.sequence": SEQUENCE}
    words |= {"parallel.data": REAL_RANKS, "optim.kind": question.optimizer, "train.precision": question.precision}
    words |= {"train.device": "cpu", "train.threads": 1}
    recipes = [recipe_of("tiny", words | {"parallel.shard": shard}) for shard in STAGES.values()]
    model, vocab = recipes[0].model, vocabulary(recipes[0])
    values = count_parameters(model, vocab)
    moments = round(values * state_bytes_per_value(model, vocab, _optim(question), _item(question)))
    like = question.model_copy(update={"parameters": float(values), "ranks": REAL_RANKS})
    stages = zip(STAGES.items(), zip(*on_ranks(recipes), strict=True), _traffic(like), strict=True)
    for (name, shard), ranks, traffic in stages:
        for category, planned in _held(like, shard, moments).items():
            key = "moments" if category == "optimizer" else category
            rows.append([name, category, planned, max(each.held[key] for each in ranks)])
        sent = max(ranks, key=lambda each: sum(each.sent.values())).sent
        messages.append([name, "; ".join(sent), traffic[1], sum(sent.values())])
    columns: Columns = {"stage": None, "what": None, "planned": "bytes", "measured": "bytes"}
    held = (
        f"The fullest of {REAL_RANKS} processes on this machine, after a step of the recipe `tiny`. zero-1 and zero-2 "
        "need the whole weights within the step alone, and zero-1 the whole gradients."
    )
    sends: Columns = {"stage": None, "messages": None, "planned": "bytes", "measured": "bytes"}
    note = "The plan has zero-3 gather all weights twice; those outside of the blocks (embedding, head) stay gathered."
    return Answer(
        state=Table(title="Planned and measured on four processes", note=held, columns=columns, rows=rows),
        messages=Table(title="Sent by a rank in the step", note=note, columns=sends, rows=messages),
    )


@explorer(
    "ZeRO",
    asks="What does a rank hold if data ranks share the optimizer, the gradients and the weights, and what is sent?",
    code=(
        "model.config.flops:state_bytes",
        "plan.devices.collective_times:group",
        "plan.planned_memory:estimate_memory",
    ),
    presets=(
        Preset("The paper's figure 1", {"parameters": 7.5e9, "ranks": 64}, "Rajbhandari et al. 2020, arXiv 1910.02054"),
        Preset("A trillion values", {"parameters": 1e12, "ranks": 1024}, "arXiv 1910.02054, table 1"),
        Preset("Eight GPUs", {"parameters": 8e9, "ranks": 8, "device": "H100"}),
    ),
    settings=_settings,
    load=_load,
    measure=_measure,
)
def zero(question: ZeroQuestion) -> Answer:
    """In plain data parallelism every rank holds the whole model: weights, gradients and the optimizer's moments. ZeRO
    divides them: each rank keeps a part, and asks the others when it needs the rest. Stage 1 divides the moments, stage
    2 the gradients too, stage 3 also the weights, which are gathered before each layer is computed."""
    held = [Bar(name=name, parts=_held(question, shard)) for name, shard in STAGES.items()]
    paper = [
        Bar(name=name, parts=paper_bytes(question.parameters, question.ranks, stage))
        for stage, name in enumerate(STAGES)
    ]
    limit = parse_cluster(f"1x{question.device}").device.memory_bytes
    return Answer(
        hornbook=Bars(
            title="Bytes of a rank in hornbook",
            note="Without activations. zero-1 and zero-2 keep the rank's share of the weights besides the whole ones.",
            bars=held,
            limit=limit,
        ),
        paper=Bars(
            title="As the paper counts",
            note="16-bit weights and gradients, and 12 bytes of the optimizer: float32 weights and two moments.",
            bars=paper,
            limit=limit,
        ),
        blocks=_blocks(question),
        traffic=Table(
            title="What a rank sends in a step of one microbatch",
            note="Units are the bytes of all weights; gradients are summed in 32 bits. Time is by latency and "
            "bandwidth of the device's links, if no computation hides it.",
            columns={"stage": None, "bytes": "bytes", "in units of the model": "", "time": "seconds"},
            rows=_traffic(question),
        ),
    )
