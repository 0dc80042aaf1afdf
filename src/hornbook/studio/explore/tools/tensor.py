"""Tensor parallelism: shards of real small matrices, what the ranks send, and where it stops paying."""

from typing import Any, Literal

import numpy as np

from hornbook.errors import UsageError
from hornbook.model.config.part import method
from hornbook.plan.devices.collective_times import group
from hornbook.plan.devices.device_rates import rates_of
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import estimate_layout, vocabulary
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import Preset, explorer, means, settings_of, slider
from hornbook.studio.explore.recipes import Device, Model, on, recipe_of
from hornbook.studio.explore.views import Answer, Cell, Columns, Curves, Facts, Grid, Line, Table, fact

TOKENS, WIDTH, HIDDEN = 8, 8, 16
"""Of the small matrices."""
SIZES = (1, 2, 4, 8, 16)


class TensorQuestion(Config):
    """A layer on tensor ranks."""

    model: Model = "llama-3-8b"
    """The model whose layers are divided: a shipped recipe, or the path of one of yours."""
    ranks: int = slider(4, 1, 8, "parallel.tensor")
    """Ranks that divide each matrix (`parallel.tensor`); the small matrices have 16 hidden values."""
    sequence: bool = means(False, "parallel.sequence")
    """Norms between the matrices are divided by time, too (`parallel.sequence`)."""
    device: Device = "H100"
    rows: int = slider(1, 1, 32, "train.micro_batch")
    """Rows that the ranks compute together."""
    show: Literal["up", "down", "sum"] = "up"
    """The matrix whose shards are drawn, or the sum of partial results."""


def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x [tokens, width], up [hidden, width], down [width, hidden]) of fixed numbers in float64."""
    draw = np.random.default_rng(0)
    sizes = (TOKENS, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)
    x, up, down = (draw.normal(size=size) for size in sizes)
    return x, up, down


def divided_product(ranks: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """(relu(x up) down computed whole, each rank's partial sum of it).

    `up` is cut by its outputs, `down` by its inputs: each rank needs no other until the sum.
    """
    x, up, down = matrices()
    whole = np.maximum(x @ up.T, 0) @ down.T
    parts = zip(np.array_split(up, ranks), np.array_split(down, ranks, axis=1), strict=True)
    return whole, [np.maximum(x @ own.T, 0) @ back.T for own, back in parts]


def _shards(question: TensorQuestion) -> Grid:
    """Values of a matrix, coloured by the rank that holds them; or whole and summed results."""
    _, up, down = matrices()
    if question.show == "sum":
        total = sum(divided_product(question.ranks)[1])
        matrix, owner = np.asarray(total), np.zeros((TOKENS, WIDTH), int)
        title, note = "The sum of all partial results", "Each rank has it after the all-reduce."
    else:
        matrix, axis = (up, 0) if question.show == "up" else (down, 1)
        parts = np.array_split(np.arange(HIDDEN), question.ranks)
        rank = np.concatenate([np.full(len(part), number) for number, part in enumerate(parts)])
        owner = np.broadcast_to(rank[:, None] if axis == 0 else rank[None, :], matrix.shape)
        side = "rows: the outputs of each rank are its own" if axis == 0 else "columns: each rank has a partial sum"
        title, note = f"The matrix `{question.show}`, coloured by rank", f"Cut by {side}."
    rows, columns = map(range, matrix.shape)
    cells = [
        [Cell(text=f"{matrix[i, k]:.1f}", group=int(owner[i, k]), label=f"rank {owner[i, k]}") for k in columns]
        for i in rows
    ]
    return Grid(title=title, note=note, rows=[*map(str, rows)], columns=[*map(str, columns)], cells=cells)


def _settings(question: TensorQuestion) -> dict[str, Any]:
    rows = {"train.batch_tokens": question.rows * recipe_of(question.model).train.sequence}
    return settings_of(question) | rows | ({"parallel.sequence": False} if question.ranks == 1 else {})


def _scaling(question: TensorQuestion) -> Answer:
    rows: list[list[Any]] = []
    for size in SIZES:
        try:
            words = _settings(question.model_copy(update={"ranks": size}))
            recipe, cluster = on(f"{size}x{question.device}", question.model, words)
            layout = estimate_layout(recipe, vocabulary(recipe), cluster)
        except UsageError:
            continue
        step, peak = layout.step, layout.worst.peak.total
        rows.append([size, step.total, step.tensor / step.total, layout.mfu, peak])
    first = rows[0][1] * rows[0][0]
    ranks = [row[0] for row in rows]
    return Answer(
        speed=Curves(
            title="How many times as fast as one GPU",
            curves=[
                Line(name="planned", x=ranks, y=[first / row[1] for row in rows]),
                Line(name="perfect", x=ranks, y=[float(each) for each in ranks]),
            ],
            x="tensor ranks",
        ),
        table=Table(
            title="Where it stops paying",
            note=f"A step of {question.rows} rows; messages are those that no computation hides.",
            columns={
                "ranks": "",
                "step": "seconds",
                "share of messages": "share",
                "MFU": "share",
                "memory of a GPU": "bytes",
            },
            rows=rows,
        ),
    )


@explorer(
    "Tensor parallelism",
    asks="How do several GPUs compute one matrix product, what do they send, and how many are worth it?",
    code=("model.config.part:Cut", "plan.devices.collective_times:group", "plan.step_time:estimate_step"),
    presets=(
        Preset("Two ranks", {"ranks": 2}),
        Preset("GPT-3, eight ranks", {"model": "gpt3-175b", "ranks": 8, "device": "A100"}, "arXiv 2104.04473"),
        Preset("Sequence parallel", {"ranks": 4, "sequence": True}, "Korthikanti et al. 2022, arXiv 2205.05198"),
    ),
    settings=_settings,
    further=_scaling,
)
def tensor(question: TensorQuestion) -> Answer:
    """Each GPU holds a part of every matrix. The first matrix of a layer is cut by its outputs, the second by its
    inputs, so that nothing is sent between them. After the second each GPU has a sum of its own, and these are added.
    That happens four times for each layer and step, so it needs fast links. With sequence parallelism the sum is
    scattered and gathered again: the same bytes, and the norms in between are divided, too."""
    whole, partial = divided_product(question.ranks)
    return Answer(
        product=Facts(
            title="A small product, whole and in shards",
            facts=[
                fact("largest difference to the whole product", float(np.abs(sum(partial) - whole).max())),
                fact("largest value", float(np.abs(whole).max())),
                fact("values that each rank holds", 2 * WIDTH * -(-HIDDEN // question.ranks)),
            ],
        ),
        shards=_shards(question),
        collectives=_messages(question),
        weights=_matrices(question),
    )


def _messages(question: TensorQuestion) -> Table:
    """What tensor ranks send for one layer of the real model."""
    recipe = recipe_of(question.model)
    stream = 2 * question.rows * recipe.train.sequence * recipe.model.width
    cluster = parse_cluster(f"{question.ranks}x{question.device}")
    rates = rates_of(cluster.device, "bf16")
    over = group(cluster, question.ranks, 1, rates.link, rates.network)
    names = ("reduce-scatter", "all-gather") if question.sequence else ("all-reduce",)
    seconds = over.gather(stream) if question.sequence else over.all_reduce(stream)
    sent = (question.ranks - 1) / question.ranks * stream * (1 if question.sequence else 2)
    ways, places = ("forward", "backward"), ("attention", "MLP")
    return Table(
        title=f"Messages of one layer of {question.model}",
        note="Bytes that each rank sends in 16 bits, and the time if no computation hides it.",
        columns={"message": None, "bytes": "bytes", "time": "seconds"},
        rows=[[f"{name}, {place}, {way}", sent, seconds] for way in ways for place in places for name in names],
    )


def _matrices(question: TensorQuestion) -> Table:
    """How the parts of the real model say that their matrices are cut."""
    layer = recipe_of(question.model).model.layer(0)
    rows = list[list[Any]]()
    for part in ("attention", "mlp"):
        for each in method(getattr(layer, part), "weights")(layer):
            if len(each.shape) > 1:
                shape, values = " x ".join(map(str, each.shape)), each.size / (question.ranks if each.cut else 1)
                rows.append([f"{part}.{each.name}", shape, _cut_text(each), values])
    columns: Columns = {"matrix": None, "shape": None, "cut by": None, "values of a rank": "count"}
    return Table(title="Matrices of a layer", columns=columns, rows=rows)


def _cut_text(weight: Any) -> str:
    if weight.cut is None:
        return "whole on each rank"
    outputs = weight.cut.dim == len(weight.shape) - 2
    return f"{'outputs' if outputs else 'inputs'}, {weight.cut.units} {weight.cut.unit.replace('_', ' ')}"
