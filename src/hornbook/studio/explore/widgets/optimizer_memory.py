"""Bytes of optimizers: the state that each update rule declares for each parameter of a model."""

from typing import Any, Literal

from pydantic import TypeAdapter

from hornbook.model.config.parameter_count import count_parameters
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.plan.planner import vocabulary
from hornbook.plan.update import state_bytes_per_value
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import Preset, explorer
from hornbook.studio.explore.recipes import Model, recipe_of
from hornbook.studio.explore.views import Answer, Bar, Bars, Table

KINDS = (
    "sgd",
    "lion",
    "adafactor",
    "adagrad",
    "rmsprop",
    "adamw8bit",
    "adamw",
    "lamb",
    "muon",
    "soap",
    "schedule_free",
)
_OPTIMIZER: TypeAdapter[Any] = TypeAdapter(AnyOptimizer)


class OptimizerMemoryQuestion(Config):
    """A model and the precision of its weights."""

    model: Model = "llama-7b"
    precision: Literal["bf16", "bf16-pure"] = "bf16"
    """bf16 keeps weights and gradients in 32 bits, bf16-pure in 16."""


@explorer(
    "Bytes of optimizers",
    asks="How much memory does each optimizer need besides the weights and gradients?",
    code=("plan.update:state_bytes_per_value", "optim.config.rule:UpdateRule"),
    presets=(
        Preset("LLaMA 7B in 16 bits", {"model": "llama-7b", "precision": "bf16-pure"}, "GaLore, arXiv 2403.03507"),
    ),
)
def optimizer_memory(question: OptimizerMemoryQuestion) -> Answer:
    """An optimizer remembers something of earlier gradients. SGD keeps one average for each weight, Adam two; Adafactor
    keeps sums of rows and columns, 8-bit Adam rounds its averages. What it remembers is often more than the model."""
    recipe = recipe_of(question.model)
    vocab, item = vocabulary(recipe), 2 if question.precision == "bf16-pure" else 4
    values = count_parameters(recipe.model, vocab)
    bars, rows = list[Bar](), list[list[Any]]()
    for kind in KINDS:
        optim = _OPTIMIZER.validate_python({"kind": kind})
        each = state_bytes_per_value(recipe.model, vocab, optim, item)
        bars.append(
            Bar(name=kind, parts={"weights": item * values, "gradients": item * values, "state": each * values})
        )
        rows.append([kind, each * values, each])
    return Answer(
        bars=Bars(title=f"Weights, gradients and state of {question.model}", bars=bars),
        table=Table(
            title="State",
            columns={"optimizer": None, "state": "bytes", "bytes per parameter": ""},
            rows=rows,
        ),
    )
