"""Interventions: settings that change at a step boundary while a run trains (`hornbook tell`).

The recipe and the length in force at a step are a pure function of the recipe that the run began with and of the
interventions up to that step. The ledger holds each intervention before it takes effect, so every later attempt makes
the same change at the same step, from whatever checkpoint it goes on. A checkpoint of step N is from before the
interventions at step N.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pydantic import ValidationError

from hornbook.errors import UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import adapter_of
from hornbook.optim.config.batch_schedule import Batches
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.config.swap_config import REWARM_STEPS, carried_settings, kind_of_rule, rewarms
from hornbook.run.ledger.training_length import TrainingLength
from hornbook.settings.fields import Duration
from hornbook.settings.recipe import Recipe, cross_check
from hornbook.settings.resolve import Resolved, leaves, override
from hornbook.settings.resume_rules import Change, refuse_untold, resume_changes
from hornbook.settings.schema import plain
from hornbook.settings.show import toml_value
from hornbook.settings.sources import Source, command_line_source, give_all, split_key
from hornbook.settings.toml import dotted, set_at


@dataclass(frozen=True)
class SettingChange:
    """One setting that an intervention changes."""

    key: str
    old: Any
    new: Any
    gone: bool = False
    """Whether the setting does not exist afterwards: those of another kind."""

    def __str__(self) -> str:
        return f"{self.key} {toml_value(self.old)} -> {'(none)' if self.gone else toml_value(self.new)}"


@dataclass(frozen=True)
class Overlay:
    """A factor on the learning rate that lasts for a while."""

    factor: float
    tokens: int
    """For which it holds."""
    back: int
    """Tokens over which it then returns to 1, in a straight line."""

    def at(self, done: int) -> float:
        """The factor of the step that begins `done` tokens behind its start."""
        share = min(max((done - self.tokens) / max(self.back, 1), 0.0), 1.0)
        return 1.0 if done < 0 else self.factor + (1.0 - self.factor) * share


@dataclass(frozen=True)
class Intervention:
    """Settings that change between two steps."""

    step: int
    """Steps done before it takes effect."""
    tokens: int
    """Tokens consumed before it takes effect."""
    changes: tuple[SettingChange, ...] = ()
    rewarm_tokens: int = 0
    """Tokens over which the learning rate rises again, in a straight line from 0."""
    blend_tokens: int = 0
    """Tokens over which the old activation gives way to the new one."""
    overlay: Overlay | None = None
    """A factor on the learning rate from here on."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The intervention that a record of the ledger holds."""
        changes = [SettingChange(each["key"], each["old"], each["new"], each["gone"]) for each in record["changes"]]
        spans = {name: record.get(name, 0) for name in ("rewarm_tokens", "blend_tokens")}
        overlay = Overlay(*record["overlay"]) if record.get("overlay") else None
        return cls(record["step"], record["tokens"], tuple(changes), **spans, overlay=overlay)

    def fields(self) -> dict[str, Any]:
        """Its fields in a record of the ledger, beside step and tokens."""
        spans = {"rewarm_tokens": self.rewarm_tokens, "blend_tokens": self.blend_tokens}
        overlay = {} if self.overlay is None else {"overlay": list(vars(self.overlay).values())}
        changes = [vars(each) for each in self.changes]
        return {"changes": changes, **{key: each for key, each in spans.items() if each}, **overlay}

    def describe(self) -> str:
        """The changes on one line."""
        if self.overlay is not None:
            return f"learning rate x {self.overlay.factor:g} for {self.overlay.tokens:,} tokens"
        return ", ".join(map(str, self.changes)) or "nothing changes"

    def apply(self, resolved: Resolved) -> Resolved:
        """The recipe with the changes. UsageError where they do not go together with the other settings."""
        origins = dict(resolved.origins)
        for change in self.changes:
            origins.pop(change.key, None)
            if not change.gone:
                origins[change.key] = f"told at step {self.step}"
        return Resolved(with_changes(resolved.recipe, self.changes), origins)


def with_changes(recipe: Recipe, changes: Sequence[SettingChange]) -> Recipe:
    """The recipe with the changes. UsageError where they do not go together with the other settings."""
    tree = plain(recipe)
    for change in changes:
        if change.gone:
            _remove(tree, split_key(change.key))
        else:
            set_at(tree, split_key(change.key), change.new)
    try:
        found = Recipe.model_validate(tree)
        problems = cross_check(found)
    except ValidationError as error:
        found, first = recipe, error.errors(include_url=False)[0]
        problems = [(dotted(first["loc"]), first["msg"])]
    if problems:
        words, (key, text) = ", ".join(map(str, changes)), problems[0]
        raise UsageError(f"{words} does not fit the other settings of the run: {key} {text}")
    return found


def _remove(tree: dict[str, Any], path: Sequence[str]) -> None:
    """Remove a value, and the table that held nothing else."""
    below = tree.get(path[0])
    if len(path) > 1 and isinstance(below, dict):
        _remove(below, path[1:])
    if len(path) == 1 or below == {}:
        tree.pop(path[0], None)


def setting_changes(old: Recipe, new: Recipe) -> tuple[SettingChange, ...]:
    """The settings that differ."""
    there = {dotted(path) for path, _ in leaves(new)}
    return tuple(
        SettingChange(each.key, each.old, each.new, each.key not in there) for each in resume_changes(old, new)
    )


def ends_interventions(changes: Sequence[Change], interventions: Iterable[Intervention]) -> bool:
    """Whether settings that a resume changes are among those that interventions changed, which then end.

    From its checkpoint on the run then has the values of recipe.toml, and those given.
    """
    told = {_section(change.key) for each in interventions for change in each.changes}
    return any(_section(change.key) in told for change in changes)


def _section(key: str) -> str:
    """Settings that are judged together."""
    return "optim" if key.startswith("optim.") else "batch" if key.startswith(("train.batch", "train.ramp")) else key


@dataclass(frozen=True)
class ActivationBlend:
    """A change of the activation in the MLPs."""

    start: int
    """Tokens consumed at its start."""
    tokens: int
    """Tokens that it lasts; 0: it is done at once."""
    before: ModelConfig
    after: ModelConfig

    def share(self, consumed: int) -> float:
        """Share of the new activation in the step that begins after `consumed` tokens."""
        return min((consumed - self.start) / self.tokens, 1.0) if self.tokens else 1.0


@dataclass(frozen=True)
class Course:
    """The settings in force at a step, and the interventions of later steps that are known already."""

    resolved: Resolved
    length: TrainingLength
    known: tuple[Intervention, ...] = ()
    """Not applied yet, by step: the ledger has them, and the run went on from an earlier checkpoint."""
    rewarm: tuple[int, int] = (0, 0)
    """(tokens consumed at its start, tokens) of the newest rise of the learning rate after a change of optimizer."""
    blend: ActivationBlend | None = None
    """The newest change of the activation."""
    overlays: tuple[tuple[int, Overlay], ...] = ()
    """(tokens consumed at its start, factor on the learning rate)."""

    @property
    def recipe(self) -> Recipe:
        """The recipe in force."""
        return self.resolved.recipe

    def after(self, intervention: Intervention) -> "Course":
        """The course after an intervention. UsageError where it cannot be made."""
        resolved, length, at = intervention.apply(self.resolved), self.length, intervention.tokens
        known = self.known
        if _batches(resolved.recipe) != _batches(self.recipe):
            length = replace(length, batches=length.batches.then(at, _batches(resolved.recipe)))
            # The steps of later interventions begin after other numbers of tokens now.
            spans = (round(length.batches.tokens_of(each.step - intervention.step, at)) for each in known)
            known = tuple(replace(each, tokens=at + span) for each, span in zip(known, spans, strict=True))
        rewarm = (at, intervention.rewarm_tokens) if intervention.rewarm_tokens else self.rewarm
        blend = self.blend
        if resolved.recipe.model != self.recipe.model:
            if blend is not None and blend.share(at) < 1:
                raise UsageError("model.mlp.activation: the blend of the change before is not over")
            blend = ActivationBlend(at, intervention.blend_tokens, self.recipe.model, resolved.recipe.model)
        overlays = self.overlays if intervention.overlay is None else (*self.overlays, (at, intervention.overlay))
        changed = {"rewarm": rewarm, "blend": blend, "overlays": overlays}
        return replace(self, resolved=resolved, length=length, known=known, **changed)

    def due(self, step: int) -> Intervention | None:
        """The first known intervention of a step up to `step`."""
        return self.known[0] if self.known and self.known[0].step <= step else None

    def next(self) -> "Course":
        """The course after the first known intervention."""
        after = self.after(self.known[0])
        return replace(after, known=after.known[1:])

    def before(self, step: int) -> "Course":
        """The course that the checkpoint of `step` belongs to: before the interventions at `step`."""
        course = self
        while course.due(step - 1) is not None:
            course = course.next()
        return course

    def to_end(self) -> "Course":
        """The course after all known interventions."""
        return self.before(self.known[-1].step + 1) if self.known else self

    def learning_rate(self, consumed: int) -> float:
        """Learning rate of the step that begins after `consumed` tokens."""
        optim, length = self.recipe.optim, self.length
        rate = optim.lr * optim.schedule(length.schedule_clock(consumed), length.planned, length.batches)
        for begun, overlay in self.overlays:
            rate *= overlay.at(consumed - begun)
        start, span = self.rewarm
        done = consumed + length.batches.at(consumed) - start
        return rate if done >= span else rate * (done / span)


def sorted_by_step(interventions: Iterable[Intervention]) -> tuple[Intervention, ...]:
    """In the order in which they take effect: by step, and at one step as they were decided."""
    return tuple(sorted(interventions, key=lambda each: each.step))


def _batches(recipe: Recipe) -> Batches:
    return recipe.train.ramp.batches(recipe.train.batch_tokens)


def propose(
    resolved: Resolved, words: Sequence[str], matched_rate: Callable[[AnyOptimizer], float | None] = lambda _: None
) -> tuple[SettingChange, ...]:
    """The changes that `key=value` words make to a recipe in force.

    An optimizer of another kind takes over what `optim.swap.carried_settings` says, and the learning rate that
    `matched_rate` gives; what the words say comes first. Raises ConfigError for an unknown key or a value that does not
    fit, UsageError for a setting that must not change while the run trains.
    """
    given, old = command_line_source(words), resolved.recipe.optim
    found = override(resolved, [given]).recipe
    if kind_of_rule(found.optim) != kind_of_rule(old):
        carried = {"kind": kind_of_rule(found.optim), **carried_settings(old, found.optim)}
        found = _with_carried(resolved, carried, given)
        if "lr" not in carried and (rate := matched_rate(found.optim)) is not None:
            found = _with_carried(resolved, carried | {"lr": rate}, given)
    refuse_untold(resume_changes(resolved.recipe, found))
    if found.model != resolved.recipe.model and adapter_of(found.surgery) is not None:
        raise UsageError("model.mlp.activation cannot change in a run that trains an adapter: it belongs to its base")
    return setting_changes(resolved.recipe, found)


def _with_carried(resolved: Resolved, carried: dict[str, Any], given: Source) -> Recipe:
    return override(resolved, [Source({"optim": give_all(carried, "carried over")}), given]).recipe


def rewarm_tokens(changes: Sequence[SettingChange], length: TrainingLength, consumed: int) -> int:
    """Tokens over which the learning rate rises again after these changes, unless the request says otherwise.

    100 steps after a change to a rule of another family, or the first quarter of a shorter rest.
    """
    kinds = [(str(each.old), str(each.new)) for each in changes if each.key == "optim.kind"]
    if not any(rewarms(*pair) for pair in kinds):
        return 0
    return min(round(length.batches.tokens_of(REWARM_STEPS, consumed)), (length.tokens - consumed) // 4)


def span_tokens(span: Duration | None, length: TrainingLength, consumed: int) -> int:
    """A span from `consumed` tokens on in tokens; a share is one of the rest of the run."""
    if span is None:
        return 0
    return round(span.tokens(length.tokens - consumed, lambda steps: length.batches.tokens_of(steps, consumed)))
