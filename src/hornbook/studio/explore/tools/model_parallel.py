"""Model parallelism without a pipeline: blocks on several devices, and one batch that passes through them."""

from itertools import pairwise
from typing import Any

from hornbook.errors import UsageError
from hornbook.parallel.axes.pipeline.cuts import stage_costs
from hornbook.parallel.axes.pipeline.pass_orders import Durations, plan, simulate
from hornbook.parallel.config import ParallelConfig, PipelineConfig
from hornbook.plan.counts.held_counts import held_values
from hornbook.plan.planner import vocabulary
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import Preset, explorer, slider
from hornbook.studio.explore.recipes import Model, recipe_of
from hornbook.studio.explore.views import Answer, Bar, Bars, Facts, Span, Table, Timeline, fact

BYTES = 16
"""Of a trained value: weight, gradient and two moments in float32."""


class ModelParallelQuestion(Config):
    """A model, and where it is cut."""

    model: Model = "gpt2-1.5b"
    devices: int = slider(4, 2, 16)
    """Devices that hold its blocks one after the other."""
    cuts: str = ""
    """First block of each device but the first, such as 12,24,36; empty: evenly by operations, the head's included."""
    rows: int = slider(4, 1, 64)
    """Rows of the batch."""
    backward: float = slider(2.0, 1.0, 3.0)
    """Time of a backward pass, in forward passes."""


def _parallel(question: ModelParallelQuestion, blocks: int) -> ParallelConfig:
    try:
        cuts = [int(each) for each in question.cuts.replace(" ", "").split(",") if each]
    except ValueError:
        raise UsageError(
            f"cuts = {question.cuts[:40]}: write numbers of blocks between commas, such as 12,24"
        ) from None
    if cuts and (len(cuts) != question.devices - 1 or any(low >= high for low, high in pairwise([0, *cuts, blocks]))):
        raise UsageError(
            f"cuts = {question.cuts[:40]}: write {question.devices - 1} rising numbers from 1 to {blocks - 1}"
        )
    return ParallelConfig(pipeline=PipelineConfig(stages=question.devices, schedule="gpipe", cuts=cuts))


def _settings(question: ModelParallelQuestion) -> dict[str, Any]:
    return {"parallel.pipeline.stages": question.devices, "parallel.pipeline.schedule": "gpipe"}


@explorer(
    "Model parallelism",
    asks="A model is too large for one device. What if its layers are simply put on several?",
    code=(
        "parallel.axes.pipeline.cuts:stage_costs",
        "parallel.axes.pipeline.pass_orders:simulate",
        "plan.counts.held_counts:held_values",
    ),
    presets=(
        Preset("GPT-2 XL on four", {}),
        Preset("Cut evenly by blocks", {"devices": 4, "cuts": "12,24,36"}),
        Preset("T5 on two", {"model": "t5-v1.1-base", "devices": 2}),
    ),
    settings=_settings,
)
def model_parallel(question: ModelParallelQuestion) -> Answer:
    """The simplest way to train a model that does not fit: the first device has the first layers, the next device the
    next ones. But a batch passes through the devices one after the other, and while one computes, all others wait. With
    n devices each works 1/n of the time. A pipeline cuts the batch into microbatches to fill that time."""
    recipe = recipe_of(question.model)
    model, vocab, sequence = recipe.model, vocabulary(recipe), recipe.train.sequence
    (_, blocks), _ = stage_costs(ParallelConfig(), model, vocab, sequence)
    parallel = _parallel(question, blocks)
    bounds, shares = stage_costs(parallel, model, vocab, sequence)
    half = question.backward / 2
    durations = [Durations(each, each * half, each * half) for each in shares]
    timed = simulate(plan("gpipe", question.devices, 1, 1), durations)
    end = max(each.end for passes in timed for each in passes)
    values = held_values(model, vocab, parallel, sequence)
    sent = 2 * question.rows * sequence * model.width
    names = [f"device {each}" for each in range(question.devices)]
    spans = [
        Span(row=row, start=each.start, end=each.end, kind="forward" if each.action.kind == "F" else "backward")
        for row, passes in enumerate(timed)
        for each in passes
    ]
    rows: list[list[Any]] = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        busy = sum(each.end - each.start for each in timed[number])
        messages = sent * ((number > 0) + (number < question.devices - 1))
        rows.append([names[number], f"{low} to {high - 1}", values[number], shares[number], 1 - busy / end, messages])
    idle = 1 - sum(each.end - each.start for each in spans) / (end * question.devices)
    return Answer(
        summary=Facts(
            title="One step",
            facts=[
                fact("share of the time that devices wait", idle, "share"),
                fact("as fast as one device that held all", question.devices * (1 + question.backward) / end),
                fact("bytes of a message, 16 bits", sent, "bytes"),
            ],
        ),
        timeline=Timeline(title="Who computes when, time to the right", rows=names, spans=spans),
        held=Bars(
            title="Weights, gradients and moments",
            note=f"{BYTES} bytes for each trained value, without activations.",
            bars=[Bar(name=name, parts={"state": BYTES * each}) for name, each in zip(names, values, strict=True)],
        ),
        devices=Table(
            title="Devices",
            note="Cost is the share of the mean device's operations. Messages are activations forward and their "
            "gradients backward.",
            columns={
                "device": None,
                "blocks": None,
                "parameters": "count",
                "cost": "",
                "waits": "share",
                "sends": "bytes",
            },
            rows=rows,
        ),
    )
