"""The steps of a recipe, built from the entries of `text.steps`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.text.config.step import StepConfig
from hornbook.text.refinery.step import (
    Cut,
    Decision,
    Edit,
    GlobalDecision,
    Measurer,
    MeasuringStep,
    SketchingStep,
    Step,
)

MOST_REASONS = 255
"""Of one step, which names them by a byte; with at most 255 steps all reasons have numbers of two bytes."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a recipe, each list in its order."""

    edits: list[Edit]
    decisions: list[Decision | GlobalDecision]
    cuts: list[Cut]
    measurers: list[Measurer]
    """Each name once."""

    @property
    def sketched(self) -> list[SketchingStep]:
        """The steps that need sketches of every document."""
        wanting = [each for each in self.decisions if isinstance(each, GlobalDecision) and each.sketches]
        return [*wanting, *self.cuts]

    def columns(self) -> dict[str, str]:
        """Full name -> dtype of all measured columns, in the order in which they are stored."""
        found = {f"{edit.name}.{counter}": "int64" for edit in self.edits for counter in edit.counters}
        for each in self.measurers:
            found.update({f"{each.name}.{column}": dtype for column, dtype in each.columns.items()})
        return found


def build(configs: Iterable[StepConfig]) -> Steps:
    """Build the steps. Raises UsageError where a step's extra, file or function is missing, where two steps would drop
    documents for one reason, or one step has more reasons than a byte can number.
    """
    built = [_named(config.build(), config) for config in configs]
    _check_reasons(built)
    edits = [each for each in built if isinstance(each, Edit)]
    decisions = [each for each in built if isinstance(each, Decision | GlobalDecision)]
    cuts = [each for each in built if isinstance(each, Cut)]
    steps = Steps(edits, decisions, cuts, _measurers([*decisions, *cuts]))
    for step in built:
        step.check(steps.columns())
    return steps


def _named(step: Step, config: StepConfig) -> Step:
    """The reasons of a step that has a name begin with it, so that two steps of one kind share none."""
    if config.name:
        step.reasons = tuple(each if each == config.name else f"{config.name}: {each}" for each in step.reasons)
    return step


def _check_reasons(steps: Sequence[Step]) -> None:
    owners: dict[str, str] = {}
    for step in steps:
        if (count := len(step.reasons)) > MOST_REASONS:
            raise UsageError(f"step {step.name!r} has {count} reasons to drop documents, more than {MOST_REASONS}")
        for reason in step.reasons:
            if owners.setdefault(reason, step.name) != step.name:
                raise UsageError(
                    f"steps {owners[reason]!r} and {step.name!r} both drop documents as {reason!r}: "
                    "give one of them another `name`"
                )


def _measurers(steps: Sequence[MeasuringStep]) -> list[Measurer]:
    found: dict[str, Measurer] = {}
    for step in steps:
        for each in step.measurers:
            if type(found.setdefault(each.name, each)) is not type(each):
                raise UsageError(f"step {step.name!r}: {each.name!r} is measured by another step: give it another name")
    return list(found.values())
