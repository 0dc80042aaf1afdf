"""From the entries of `text.steps` to steps that work. A new kind of step is a config, a class, and a line here."""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.text.config.step import StepConfig
from hornbook.text.refinery.step import Cut, Decision, Edit, GlobalDecision, Measurer, Sketched, Step

STEPS = {
    "normalize": ".steps.basics:Normalize",
    "python": ".steps.python_step:PythonStep",
    "repair": ".steps.repair:Repair",
    "personal": ".privacy.personal:Personal",
    "boilerplate": ".steps.boilerplate:Boilerplate",
    "swap": ".steps.augment:Swap",
    "word_edits": ".steps.augment:WordEdits",
    "drop_empty": ".steps.basics:DropEmpty",
    "exact_dedup": ".steps.basics:ExactDedup",
    "exclude": ".steps.basics:Exclude",
    "classifier": ".scores.classifier:Classifier",
    "perplexity": ".scores.perplexity_model:Perplexity",
    "quantiles": ".scores.quantiles:Quantiles",
    "vocabulary": ".scores.vocabulary:Vocabulary",
    "harmful": ".steps.harmful:Harmful",
    "language": ".steps.language:Language",
    "code": ".steps.code:Code",
    "mentions": ".bias.mentions:Mentions",
    "rebalance": ".bias.rebalance:Rebalance",
    "near_dedup": ".dedup.near_dedup:NearDedup",
    "decontaminate": ".dedup.decontaminate:Decontaminate",
    "line_dedup": ".dedup.lines:LineDedup",
    "paragraph_dedup": ".dedup.lines:ParagraphDedup",
    "span_dedup": ".dedup.spans:SpanDedup",
    "gopher_quality": ".quality.quality_rules:GopherQuality",
    "gopher_repetition": ".quality.quality_rules:GopherRepetition",
    "c4_lines": ".quality.c4_lines:C4Lines",
    "c4": ".quality.quality_rules:C4",
    "mc4": ".quality.quality_rules:MC4",
    "fineweb": ".quality.quality_rules:FineWeb",
}
"""Kind -> module (of this room, with a dot) and class; imported when a recipe has it, for many compile kernels."""

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
    def sketched(self) -> list[Sketched]:
        """Those that want sketches of every document."""
        wanting = [each for each in self.decisions if isinstance(each, GlobalDecision) and each.sketches]
        return [*wanting, *self.cuts]

    def columns(self) -> dict[str, str]:
        """Full name -> dtype of all columns that are measured, in the order in which they are stored."""
        found = {f"{edit.name}.{counter}": "int64" for edit in self.edits for counter in edit.counters}
        for each in self.measurers:
            found.update({f"{each.name}.{column}": dtype for column, dtype in each.columns.items()})
        return found


def build(configs: Iterable[StepConfig]) -> Steps:
    """Make the steps. Errors: what a step raises whose extra, file or function is missing (UsageError), and UsageError
    where two steps would drop documents for one reason, or one for more reasons than a byte tells apart.
    """
    steps = [_made(config) for config in configs]
    _check_reasons(steps)
    decisions = [each for each in steps if isinstance(each, Decision | GlobalDecision)]
    cuts = [each for each in steps if isinstance(each, Cut)]
    edits = [each for each in steps if isinstance(each, Edit)]
    found = Steps(edits, decisions, cuts, _measurers([*decisions, *cuts]))
    for step in steps:
        step.check(found.columns())
    return found


def _made(config: StepConfig) -> Step:
    """A step; the reasons of one that has a name begin with it, so that two of one kind share none."""
    step = _class_of(config)(config)
    if isinstance(step, Edit):
        step.reason = _named(config.name, step.reason)
    elif isinstance(step, Decision | GlobalDecision):
        step.reasons = tuple(_named(config.name, reason) for reason in step.reasons)
    return step


def _named(name: str, reason: str) -> str:
    return f"{name}: {reason}" if name and reason and reason != name else reason


def _check_reasons(steps: Sequence[Step]) -> None:
    owners: dict[str, str] = {}
    for step in steps:
        reasons = step.reasons if isinstance(step, Decision | GlobalDecision) else ()
        if len(reasons) > MOST_REASONS:
            raise UsageError(f"step {step.name!r} has {len(reasons)} reasons to drop documents: {MOST_REASONS} is most")
        for reason in (step.reason,) if isinstance(step, Edit) and step.reason else reasons:
            if owners.setdefault(reason, step.name) != step.name:
                raise UsageError(
                    f"steps {owners[reason]!r} and {step.name!r} both drop documents as {reason!r}: "
                    "give one of them another `name`"
                )


def _class_of(config: StepConfig) -> type[Step]:
    module, _, name = STEPS[getattr(config, "kind")].partition(":")  # noqa: B009 - each its own type
    return getattr(importlib.import_module(module, __package__), name)


def _measurers(steps: Sequence[Decision | Sketched]) -> list[Measurer]:
    found: dict[str, Measurer] = {}
    for step in steps:
        for each in step.measurers:
            if type(found.setdefault(each.name, each)) is not type(each):
                raise UsageError(
                    f"step {step.name!r}: {each.name!r} is what another step measures: give it another name"
                )
    return list(found.values())
