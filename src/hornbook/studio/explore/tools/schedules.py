"""Learning-rate schedules: the trainer's own functions of the tokens consumed."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import TypeAdapter

from hornbook.errors import UsageError
from hornbook.optim.config.batch_schedule import Batches, LinearRamp
from hornbook.optim.config.optim import AdamW
from hornbook.optim.config.schedule_base import Axis, ScheduleConfig
from hornbook.optim.config.schedules import Schedule
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import ENGLISH, Preset, explorer, slider
from hornbook.studio.explore.recipes import SMALL_STEPS, small_recipe
from hornbook.studio.explore.views import Answer, Curves, Facts, Line, Table, fact

Kind = Literal[
    "constant",
    "linear",
    "cosine",
    "wsd",
    "inverse_sqrt",
    "power",
    "polynomial",
    "exponential",
    "step",
    "cosine_restarts",
    "cyclic",
    "one_cycle",
]
POINTS = 240
"""Steps at which curves are computed."""
MORE: dict[str, dict[str, Any]] = {"step": {"points": ["50%", "75%"]}, "cosine_restarts": {"cycles": 3}}
"""Settings of kinds that would be dull or refused without them."""
_SCHEDULE: TypeAdapter[Any] = TypeAdapter(Schedule)


class SchedulesQuestion(Config):
    """A run, and the schedules to lay over each other."""

    kinds: tuple[Kind, ...] = ("cosine", "wsd", "linear")
    """The schedules to compare (`optim.schedule.kind`)."""
    peak: float = slider(3e-4, 1e-6, 1e-1, logarithmic=True)
    """The highest learning rate (`optim.lr`)."""
    tokens: float = slider(1e9, 1e4, 1e13, logarithmic=True)
    """Tokens of the run (`train.tokens`)."""
    batch_tokens: float = slider(524288, 1024, 2**26, logarithmic=True)
    """Tokens of a step (`train.batch_tokens`)."""
    warmup: float = slider(0.02, 0.0, 0.5)
    """Share of the run in which the rate rises in a straight line."""
    floor: float = slider(0.1, 0.0, 1.0)
    """Rate at the end, as a share of the peak, where the kind has one."""
    decay: float = slider(0.2, 0.01, 1.0)
    """Share of the steps after warm-up in which `wsd` falls."""
    shape: Literal["sqrt", "linear", "cosine"] = "sqrt"
    """Form of the fall of `wsd`: 1 - sqrt(x), a straight line, or half a cosine."""
    ramp: float = slider(0.0, 0.0, 0.5)
    """Share of the run in which the batch grows from an eighth to its full size; 0: it is full from the start."""


def _options(question: SchedulesQuestion, kind: str) -> dict[str, Any]:
    """The settings of `optim.schedule` that this question means."""
    made: ScheduleConfig = _SCHEDULE.validate_python({"kind": kind} | MORE.get(kind, {}))
    floor = min(question.floor, 0.99) if kind == "cyclic" else question.floor
    values = {"warmup": f"{100 * question.warmup:g}%", "floor": floor}
    values |= {"decay_share": question.decay, "shape": question.shape} if kind == "wsd" else {}
    known = {name: value for name, value in values.items() if name in type(made).model_fields}
    return {"kind": kind} | MORE.get(kind, {}) | known


def _axis(question: SchedulesQuestion) -> Axis:
    full = max(round(question.batch_tokens), 8)
    total = max(round(question.tokens), full)
    if not question.ramp:
        return Axis(total, Batches((0,), (full,)))
    full -= full % 8
    ramp = LinearRamp(start_tokens=full // 8, over_tokens=max(round(question.ramp * total), 8))
    return Axis(total, ramp.batches(full))


def rates_of(
    schedule: ScheduleConfig, axis: Axis, peak: float, points: int = POINTS
) -> tuple[list[float], list[float]]:
    """(tokens before a step, its learning rate) of steps spread evenly over the run, the first and last among them."""
    steps = max(axis.batches.steps(0, axis.total), 1)
    numbers = {round(place * (steps - 1) / (points - 1)) for place in range(points)}
    if (warmup := getattr(schedule, "warmup", None)) is not None:  # the peak is in the last step of the warm-up
        numbers.add(max(axis.batches.steps(0, round(axis.tokens(warmup))) - 1, 0))
    tokens = [axis.batches.tokens_of(number) for number in sorted(numbers)]
    return tokens, [peak * schedule(each, axis.total, axis.batches) for each in tokens]


def _settings(question: SchedulesQuestion) -> dict[str, Any]:
    options = _options(question, question.kinds[0]) if question.kinds else {}
    found = {f"optim.schedule.{name}": value for name, value in options.items()}
    axis = _axis(question)
    return {"train.tokens": axis.total, "train.batch_tokens": axis.batches.sizes[-1], "optim.lr": question.peak} | found


def _load(recipe: Recipe) -> Mapping[str, Any]:
    schedule, total = recipe.optim.schedule, recipe.train.tokens
    if total is None:
        raise UsageError("this run's length is given in epochs: give tokens here")
    batches = Batches((0,), (recipe.train.batch_tokens,))
    length = getattr(schedule, "warmup", None)
    warmup = 0.0 if length is None else Axis(total, batches).tokens(length) / total
    found: dict[str, Any] = {"kinds": (schedule.kind,), "peak": recipe.optim.lr, "tokens": total, "warmup": warmup}
    found["batch_tokens"] = recipe.train.batch_tokens
    for name, key in (("floor", "floor"), ("decay_share", "decay"), ("shape", "shape")):
        if hasattr(schedule, name):
            found[key] = getattr(schedule, name)
    return found


def _measure(question: SchedulesQuestion) -> Answer:
    """The small model learns a text under each schedule."""
    from hornbook.studio.explore.real import losses_of

    axis, curves = _axis(question), list[Line]()
    for kind in question.kinds:
        _, rates = rates_of(_SCHEDULE.validate_python(_options(question, kind)), axis, question.peak, SMALL_STEPS)
        losses = losses_of(small_recipe(), AdamW(), ENGLISH, rates)
        curves.append(Line(name=kind, x=list(range(len(losses))), y=losses))
    note = f"A narrow `tiny` learns a paragraph by heart, in {SMALL_STEPS} steps spread over the schedule."
    return Answer(losses=Curves(title="Loss of a small model", note=note, curves=curves, x="steps"))


@explorer(
    "Learning-rate schedules",
    asks="How does the learning rate run over the tokens of a run, and how much does each schedule train in all?",
    code=("optim.config.schedules:Cosine", "optim.config.schedules:WSD", "optim.config.schedule_base:WarmedSchedule"),
    presets=(
        Preset(
            "GPT-3 175B",
            {
                "kinds": "cosine",
                "peak": 0.6e-4,
                "tokens": 300e9,
                "batch_tokens": 3.2e6,
                "warmup": 375e6 / 300e9,
                "ramp": 0.04,
            },
            "arXiv 2005.14165, appendix B",
        ),
        Preset("MiniCPM", {"kinds": "wsd,cosine", "peak": 0.01, "tokens": 1e12, "decay": 0.1}, "arXiv 2404.06395"),
        Preset(
            "Transformer base",
            {"kinds": "inverse_sqrt", "peak": 6.99e-4, "tokens": 5.12e9, "batch_tokens": 51_200, "warmup": 0.04},
            "arXiv 1706.03762, section 5: 4,000 steps of warm-up among 100,000",
        ),
    ),
    settings=_settings,
    load=_load,
    measure=_measure,
)
def schedules(question: SchedulesQuestion) -> Answer:
    """The learning rate says how far a step moves the weights. It rises at first, because early gradients are large and
    the optimizer has no averages yet, and falls towards the end, because small steps settle into a minimum. Schedules
    differ in when they fall: one that falls late can be continued, one that falls all the way spends more of the run at
    small rates. The functions count tokens, so a resume or another batch does not move them."""
    if not question.kinds:
        raise UsageError("kinds is empty: choose a schedule, such as cosine")
    axis = _axis(question)
    made = {kind: _SCHEDULE.validate_python(_options(question, kind)) for kind in question.kinds}
    problems = [f"{kind}: {text}" for kind, each in made.items() for _, text in each.problems(axis)]
    if problems:
        raise UsageError("; ".join(problems))
    curves = {kind: rates_of(each, axis, question.peak) for kind, each in made.items()}
    steps = axis.batches.steps(0, axis.total)
    rows = []
    for kind, (tokens, rates) in curves.items():
        falling = slice(rates.index(max(rates)) + 1, None)
        later = zip(tokens[falling], rates[falling], strict=True)
        half = next((at for at, rate in later if rate <= question.peak / 2), None)
        rows.append([kind, sum(rates) / len(rates) / question.peak, rates[0], rates[-1], half])
    sizes = [axis.batches.at(each) for each in next(iter(curves.values()))[0]]
    return Answer(
        rates=Curves(
            title="Learning rate over tokens",
            curves=[Line(name=kind, x=tokens, y=rates) for kind, (tokens, rates) in curves.items()],
            x="tokens",
        ),
        sums=Table(
            title="What each comes to",
            note="The mean rate says how far the weights can travel in all. Means are over steps.",
            columns={
                "schedule": None,
                "mean rate, of the peak": "share",
                "first step": "",
                "last step": "",
                "half of the peak at token": "count",
            },
            rows=rows,
        ),
        batch=Curves(
            title="Tokens of a step",
            curves=[Line(name="batch", x=next(iter(curves.values()))[0], y=sizes)],
            x="tokens",
            y_unit="count",
        )
        if question.ramp
        else None,
        run=Facts(
            title="The run",
            facts=[fact("steps", steps, "count"), fact("warm-up, tokens", question.warmup * axis.total, "count")],
        ),
    )
