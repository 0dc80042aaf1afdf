"""What runs on this machine measured, put to use: predicted times are multiplied by measured over predicted.

A run leaves its recipe beside what it measured, so that the prediction it is compared with is always the planner's
present one. The newest run of the same step counts; without one the median over the newest runs in that precision.
"""

import statistics
from contextlib import suppress
from itertools import islice

from pydantic import Field, ValidationError

from hornbook.errors import UsageError
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.devices.measured import FORMAT, STEP_PARTS, read_runs, step_name
from hornbook.plan.planner import described, estimate_layout, settle
from hornbook.plan.search.plan_result import Plan
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

READ, NEWEST = 8, 5
"""Runs that are read, and of them those in the same precision whose median counts: a run that begins waits for it."""
LEAST_STEPS = 10
"""A run with fewer timed steps is no measurement."""
LEAST_SECONDS = 1.0
"""Nor is one whose timed steps took less."""


class RunMeasured(Config):
    """What a run measured."""

    format: int = FORMAT
    recipe: Recipe
    """Of it the parts on which a step depends (`step_recipe`)."""
    vocab: int = Field(ge=1)
    """Rows of the embedding."""
    seconds: float = Field(gt=0)
    """Of a step, the median."""
    peak_bytes: int = Field(gt=0)
    """Most that a rank held."""
    steps: int = Field(ge=1)
    """Steps that were timed."""

    @property
    def counts(self) -> bool:
        """Whether it lasted long enough to be a measurement."""
        return self.steps >= LEAST_STEPS and self.steps * self.seconds >= LEAST_SECONDS


def anchored(plan: Plan, recipe: Recipe, cluster: Cluster) -> Plan:
    """The plan with the times that runs on this machine measured, and the sentence that says so."""
    recipe = settle(recipe, cluster)
    own = measured_runs(cluster, step_name(recipe))
    runs = own or [each for each in measured_runs(cluster) if each.recipe.train.precision == recipe.train.precision]
    ratios = [ratio for each in runs[:NEWEST] if (ratio := _ratio(each, cluster)) is not None]
    if not ratios:
        return plan
    factor = statistics.median(ratios)
    of = "the last run of this recipe" if own else f"{len(ratios)} runs" if len(ratios) > 1 else "a run"
    text = f"times are {factor:.2f} x those of data sheet and bench, as {of} on this machine measured"
    layouts = [each.slowed(factor) for each in plan.layouts]
    missed = plan.missed and plan.missed.slowed(factor)
    slowed = plan.model_copy(update={"layouts": layouts, "missed": missed, "time_factor": factor, "anchor": text})
    return described(slowed, recipe)


def step_recipe(recipe: Recipe) -> Recipe:
    """The parts of a recipe on which a step depends, under its name: no data, no paths."""
    return Recipe.model_validate(recipe.model_dump(include=STEP_PARTS | {"name": True}))


def measured_runs(cluster: Cluster, name: str = "*.json") -> list[RunMeasured]:
    """Of this machine, the newest first, READ at most; none for a cluster of a data sheet. A file of another version is
    left out. name: of a step (`step_name`)."""
    found = list[RunMeasured]()
    for record in islice(read_runs(cluster.machine, name), READ) if cluster.machine else ():
        with suppress(ValidationError):
            found.append(RunMeasured.model_validate(record))
    return [each for each in found if each.counts]


def _ratio(run: RunMeasured, cluster: Cluster) -> float | None:
    """Measured over predicted time; None for parts that do not say what they keep."""
    try:
        return run.seconds / estimate_layout(run.recipe, run.vocab, cluster).step.total
    except UsageError:
        return None
