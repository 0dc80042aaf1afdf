"""Compute-optimal sizes: what published scaling laws make of a budget."""

from typing import Any, Literal

from hornbook.plan.scaling.compute import nearest, petaflops_days, published_compute
from hornbook.plan.scaling.laws import data_constrained, law_named, published_laws
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import Preset, explorer, slider
from hornbook.studio.explore.views import Answer, Columns, Curves, Facts, Line, Table, fact, words

POINTS = 80


class ComputeOptimalQuestion(Config):
    """A budget, and perhaps a size."""

    operations: float = slider(5.76e23, 1e15, 1e27, logarithmic=True)
    """Operations of training, 6 N D."""
    law: Literal["besiroglu", "hoffmann", "kaplan"] = "besiroglu"
    """The law whose loss is drawn over sizes."""
    unique: float = slider(0.0, 0.0, 2e13)
    """Different tokens that there are to read; 0: as many as are wanted."""


@explorer(
    "Compute-optimal sizes",
    asks="How large a model, on how many tokens, is best for a budget of operations?",
    code=("plan.scaling.laws:published_laws", "plan.scaling.compute:published_compute"),
    presets=(
        Preset("Chinchilla", {"operations": 5.76e23}, "Hoffmann et al. 2022, arXiv 2203.15556"),
        Preset("GPT-3", {"operations": 3.14e23}, "arXiv 2005.14165, table D.1"),
        Preset("A laptop for a day", {"operations": 1e17}),
    ),
)
def compute_optimal(question: ComputeOptimalQuestion) -> Answer:
    """A larger model learns more from each token, and each of its tokens costs more. For a budget there is a size at
    which the loss is least. Laws that were fitted on families of runs say where; they disagree, so read them as a band.
    Nobody pays only for training: a model that will serve many requests should be smaller and see more tokens."""
    budget = question.operations
    rows: list[list[Any]] = []
    for law in published_laws():
        found = law.optimum(budget)
        rows.append([law.name, found.parameters, law.parameters, found.tokens, found.ratio, found.loss])
    near = nearest(budget)
    return Answer(
        budget=Facts(
            title="The budget",
            facts=[
                fact("petaFLOP/s-days", petaflops_days(budget)),
                fact("nearest published model", f"{near.name}, {words(near.petaflops_days)}"),
            ],
        ),
        laws=Table(
            title="What the laws advise",
            note="Losses are nats per token of each law's own text: compare them within a law. N counts all parameters "
            "or those without embeddings.",
            columns={
                "law": None,
                "parameters": "count",
                "N counts": None,
                "tokens": "count",
                "tokens per parameter": "",
                "loss": "",
            },
            rows=rows,
        ),
        loss=Curves(
            title="Loss of each size, if all of the budget is spent",
            curves=_losses(question),
            x="parameters",
            logarithmic="x",
        ),
        published=_published(budget),
    )


def _losses(question: ComputeOptimalQuestion) -> list[Line]:
    """Loss over sizes, with new text, and with text that is read again."""
    law, budget = law_named(question.law), question.operations
    best = law.optimum(budget)
    sizes = [best.parameters * 10 ** (2.4 * each / (POINTS - 1) - 1.2) for each in range(POINTS)]
    curves = [Line(name=law.name, x=sizes, y=[law.loss(size, budget / 6 / size) for size in sizes])]
    if question.unique:
        repeated = data_constrained()
        losses = [repeated.repeated_loss(size, budget / 6 / size, question.unique) for size in sizes]
        curves.append(Line(name=f"{repeated.name}, with repeated text", x=sizes, y=losses))
    return curves


def _published(budget: float) -> Table:
    listed = sorted(published_compute(), key=lambda each: each.petaflops_days)
    columns: Columns = {"model": None, "parameters": "count", "tokens": "count"}
    return Table(
        title="Compute of published models",
        note="Table D.1 of the GPT-3 paper (arXiv 2005.14165), computed from parameters and tokens.",
        columns={**columns, "petaFLOP/s-days": "", "as printed": ""},
        rows=[[each.name, each.parameters, each.tokens, each.petaflops_days, each.days] for each in listed],
        chosen=listed.index(nearest(budget)),
    )
