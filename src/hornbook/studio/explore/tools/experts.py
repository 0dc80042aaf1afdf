"""Mixture of experts: which experts a text's tokens choose, who finds no room, and what expert ranks hold and send."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from hornbook.errors import UsageError
from hornbook.model.config.mlp_config import ExpertsConfig, expert_room
from hornbook.plan.counts.routing import Loads, loads_of, other_ranks, sent_bytes, untrained_choices
from hornbook.plan.counts.share import share_of
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planned_memory import CATEGORIES, estimate_memory
from hornbook.plan.planner import vocabulary
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import ENGLISH, LONGEST_TEXT, Preset, explorer, settings_of, slider
from hornbook.studio.explore.recipes import Device, on, recipe_of, sequence_words
from hornbook.studio.explore.views import Answer, Bar, Bars, Columns, Facts, Table, fact

MixtureModel = Annotated[str, Field(max_length=1000, json_schema_extra={"choices": ["mixtral-8x7b", "tiny-mixtral"]})]
STEPS, ROWS, SEQUENCE = 100, 4, 128
"""Steps, rows and tokens of a row of a small model that learns the text."""
ITEM = 2
"""Bytes of a value that is sent: states are bf16."""
SMALL = {"model.layers": 2, "model.width": 64, "model.heads": 2, "model.attention.kv_heads": 2, "model.mlp.hidden": 64}


class ExpertsQuestion(Config):
    """A mixture, the ranks that divide it, and a text."""

    text: str = Field(default=ENGLISH, min_length=1, max_length=LONGEST_TEXT)
    """The text whose tokens are routed, byte by byte, of at most 20,000 characters."""
    model: MixtureModel = "mixtral-8x7b"
    """The model whose ranks hold the experts: a shipped recipe, or the path of one of yours."""
    experts: int = slider(8, 2, 64, "model.mlp.count")
    """Experts of a layer (`model.mlp.count`)."""
    active: int = slider(2, 1, 8, "model.mlp.active")
    """Experts that each token uses (`model.mlp.active`)."""
    capacity: float = slider(1.25, 0, 4)
    """Room of an expert, in units of its even share (`model.mlp.capacity`). 0: room for all."""
    balancing: Literal["loss", "bias"] = "loss"
    """loss: a loss on uneven use is added; bias: a number for each expert moves against its load, without a loss."""
    balance_loss: float = slider(0.01, 0, 1)
    """Weight of that loss (`model.mlp.balance_loss`)."""
    balance_rate: float = slider(0.001, 0, 0.1)
    """How far a bias moves in a step (`model.mlp.router.balance_rate`)."""
    ranks: int = slider(4, 1, 64, "parallel.expert")
    """Ranks that divide the experts of each layer (`parallel.expert`)."""
    device: Device = "H100"
    sequence: int = slider(4096, 16, 32768, "train.sequence", logarithmic=True)
    """Tokens that a rank computes at once: one row (`train.sequence`)."""


def _settings(question: ExpertsQuestion) -> dict[str, Any]:
    by_bias = question.balancing == "bias"
    found: dict[str, Any] = {
        **settings_of(question),
        **sequence_words(question.model, question.sequence),
        "train.micro_batch": 1,
        "train.batch_tokens": question.sequence * question.ranks,
        "model.mlp.router.kind": "sigmoid" if by_bias else "softmax",
        "model.mlp.balance_loss": 0.0 if by_bias else question.balance_loss,
    }
    if by_bias:
        found["model.mlp.router.balance_rate"] = question.balance_rate
    return found | ({"model.mlp.capacity": question.capacity} if question.capacity else {})


def _routers(title: str, note: str, loads: Sequence[tuple[list[Any], Loads]], columns: Columns) -> Table:
    """Loads, after the values of other columns."""
    routing: Columns = {
        "busiest expert over the mean": "",
        "evenness": "share",
        "unused experts": "count",
        "choices without room": "share",
    }
    rows = [[*names, each.busiest, each.evenness, each.unused, each.share_dropped] for names, each in loads]
    return Table(title=title, note=note, columns={**columns, **routing}, rows=rows)


def _numbers(question: ExpertsQuestion) -> list[int]:
    """Numbers of ranks that are compared; the chosen one is among them."""
    return sorted({each for each in (1, 2, 4, 8, 16, 32, 64) if each <= question.experts} | {question.ranks})


def _exchange(question: ExpertsQuestion) -> Table:
    width, rows = recipe_of(question.model).model.width, list[list[Any]]()
    for ranks in _numbers(question):
        copies = other_ranks(question.experts, question.active, ranks)
        sent = sent_bytes(question.sequence, copies, width, question.active, ITEM)
        rows.append([ranks, share_of(question.experts, ranks), copies, sent])
    return Table(
        title="What a rank sends in one layer, there and back, forward",
        note="A token goes once to each rank that holds one of its experts, here as if experts were drawn evenly.",
        columns={"ranks": "", "experts of a rank": "", "other ranks that a token goes to": "", "bytes sent": "bytes"},
        rows=rows,
        chosen=_numbers(question).index(question.ranks),
    )


def _memory(question: ExpertsQuestion, ranks: int) -> dict[str, float]:
    """Bytes of the fullest rank by category, with room for all: what a capacity keeps depends on the routing."""
    settings = _settings(question.model_copy(update={"ranks": ranks, "capacity": 0.0}))
    recipe, cluster = on(f"{ranks}x{question.device}", question.model, settings)
    memory = estimate_memory(recipe, vocabulary(recipe), cluster.device)
    peak = max((each.peak for each in memory), key=lambda peak: peak.total)
    return {name: float(getattr(peak, name)) for name in CATEGORIES if getattr(peak, name)}


def _ranks(question: ExpertsQuestion) -> Answer:
    memory = Bars(
        title="Memory of a rank",
        note="At its fullest moment, with room for all. Only experts are divided, so all else stays as it is.",
        bars=[Bar(name=f"ranks: {each}", parts=_memory(question, each)) for each in _numbers(question)],
        limit=parse_cluster(f"1x{question.device}").device.memory_bytes,
    )
    return Answer(memory=memory)


def _load(recipe: Recipe) -> Mapping[str, Any]:
    """How the mixture of a run is balanced."""
    if not isinstance(mlp := recipe.model.mlp, ExpertsConfig):
        return {}
    by_bias = mlp.router.kind == "sigmoid"
    return {
        "capacity": mlp.capacity or 0.0,
        "balancing": "bias" if by_bias else "loss",
        "balance_loss": mlp.balance_loss,
    }


def _measure(question: ExpertsQuestion) -> Answer:
    """Train a small mixture on the text with each way of balancing, by the trainer's own step."""
    from hornbook.studio.explore.real import routed

    small = question.model_copy(update={"model": "tiny-mixtral", "ranks": 1, "sequence": SEQUENCE})
    sizes = {"train.micro_batch": ROWS, "train.batch_tokens": ROWS * SEQUENCE, "train.precision": "fp32"}
    routers, bars = list[tuple[list[Any], Loads]](), list[Bar]()
    for name, balancing, steps in (("nothing", "loss", 0), ("loss", "loss", STEPS), ("bias", "bias", STEPS)):
        settings = _settings(small.model_copy(update={"balancing": balancing}))
        recipe = recipe_of("tiny-mixtral", settings | SMALL | sizes)
        loss, choices = routed(recipe, question.text, steps)
        for layer, each in enumerate(choices):
            loads = loads_of(each, question.experts, question.capacity or None)
            routers.append(([name, layer, loss], loads))
            served = {f"expert {number}": count for number, count in enumerate(loads.served.tolist())}
            bars.append(Bar(name=f"{name}, layer {layer}", parts=served))
    note = (
        f"{ROWS} rows of {SEQUENCE} bytes of the text, {STEPS} steps; by nothing: none. The loss is of the next byte."
    )
    return Answer(
        routers=_routers(
            "Routers that learned the text", note, routers, {"balanced by": None, "layer": "", "loss": ""}
        ),
        load=Bars(title="Choices that each expert serves", bars=bars, unit="count"),
    )


@explorer(
    "Mixture of experts",
    asks="Which experts do the tokens of a text go to, who finds no room, and what does dividing the experts save?",
    code=(
        "model.config.mlp_config:ExpertsConfig",
        "plan.counts.routing:loads_of",
        "plan.planned_memory:estimate_memory",
        "plan.counts.routing:sent_bytes",
    ),
    presets=(
        Preset("Mixtral 8x7B", {"experts": 8, "active": 2, "capacity": 0.0}, "Jiang et al. 2024, arXiv 2401.04088"),
        Preset(
            "Switch", {"experts": 64, "active": 1, "capacity": 1.25, "ranks": 8}, "Fedus et al. 2021, arXiv 2101.03961"
        ),
        Preset("Balanced by a bias", {"balancing": "bias", "experts": 16, "active": 4}, "arXiv 2408.15664"),
    ),
    settings=_settings,
    load=_load,
    further=_ranks,
    measure=_measure,
)
def experts(question: ExpertsQuestion) -> Answer:
    """A mixture has many experts in place of one MLP, and a router sends each token to a few of them, so the model has
    far more weights than a token uses. Routers prefer some experts: then others learn nothing, and the ranks that hold
    the preferred ones are waited for. A capacity drops what is too much. A loss on uneven use, or a bias for each
    expert, makes the router even. Expert ranks divide the experts and send each token to where its experts are."""
    if not isinstance(recipe_of(question.model).model.mlp, ExpertsConfig):
        raise UsageError(
            f"{question.model} has no experts; take mixtral-8x7b, or a recipe with model.mlp.kind = experts"
        )
    for name, value in (("active", question.active), ("ranks", question.ranks)):
        if value > question.experts:
            raise UsageError(f"{name} = {value}: a layer has {question.experts} experts; lower {name} or raise experts")
    recipe_of(question.model, _settings(question))  # refuses what the trainer would
    choices = untrained_choices(question.text.encode(), question.experts, question.active)
    loads = {name: loads_of(each, question.experts, question.capacity or None) for name, each in choices.items()}
    tokens, served, dropped = choices["at random"].shape[1], *loads["by the byte alone"]
    room = expert_room(question.capacity, question.active, question.experts, tokens) if question.capacity else None
    pairs = enumerate(zip(served.tolist(), dropped.tolist(), strict=True))
    note = "The router sees one byte, so equal bytes go to the same experts. `--real` trains routers on the text."
    return Answer(
        summary=Facts(
            title="The text",
            facts=[
                fact("tokens (bytes)", tokens, "count"),
                fact("even share of an expert", tokens * question.active / question.experts),
                fact("room of an expert", room or "for all"),
            ],
        ),
        load=Bars(
            title="Choices of an untrained router",
            note=note,
            bars=[Bar(name=f"expert {i}", parts={"served": a, "no room": b}) for i, (a, b) in pairs],
            unit="count",
            limit=room,
        ),
        routers=_routers(
            "Routers that have learned nothing",
            "Evenness is the entropy of the loads over that of even loads.",
            [([name], each) for name, each in loads.items()],
            {"router": None},
        ),
        exchange=_exchange(question),
    )
