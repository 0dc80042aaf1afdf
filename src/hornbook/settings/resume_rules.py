"""Which settings may change when a run is resumed: one table over all settings, `resume_rules.toml`.

`free`: the setting changes no number of the run. `journaled`: it changes the arithmetic or the end of the run, and each
change is written to the ledger. `refused`: it would make the checkpoint meaningless, or change sample i; `hornbook
fork` starts a run with another value.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hornbook.errors import UsageError
from hornbook.settings.recipe import Recipe
from hornbook.settings.schema import leaves
from hornbook.settings.show import toml_value
from hornbook.settings.toml import dotted

Policy = Literal["free", "journaled", "refused"]

TRAINING_ONLY = ("dropout", "init")
"""Sections of the model that its weights do not depend on."""

TOLD = ("optim.*", "train.batch_tokens", "model.mlp.activation", "guard.max_skips", "checkpoint.every")
"""Globs of the settings that may change while a run trains (`hornbook tell`)."""

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES: list[tuple[str, Policy, str]] = [(glob, policy, why) for glob, (policy, why) in _TABLE.items()]
"""(glob over dotted keys, policy, why); the first match decides."""


@dataclass(frozen=True)
class Change:
    """A setting that differs; None: no value, or a setting that the other kind does not have."""

    key: str
    old: Any
    new: Any
    policy: Policy
    reason: str


@cache
def rule_of(key: str) -> tuple[str, Policy, str]:
    """The first rule that matches a dotted key; every key has one."""
    found = next((rule for rule in RULES if fnmatchcase(key, rule[0])), None)
    assert found is not None, f"no rule says what may happen to {key} on resume"
    return found


def resume_changes(old: Recipe, new: Recipe) -> list[Change]:
    """All settings that differ between two recipes, each with its policy."""
    before = {dotted(path): value for path, value in leaves(old)}
    after = {dotted(path): value for path, value in leaves(new)}
    changes = []
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key) or (key in before) != (key in after):
            _, policy, reason = rule_of(key)
            changes.append(Change(key, before.get(key), after.get(key), policy, reason))
    return changes


def refuse_incompatible(changes: Sequence[Change]) -> None:
    """Raise UsageError if a change is refused; it names all refused changes and the remedy."""
    refused = [change for change in changes if change.policy == "refused"]
    if refused:
        lines = [f"  {_arrow(change)} cannot change on resume: {change.reason}" for change in refused]
        raise UsageError("\n".join(["this run cannot go on with other settings", *lines, _way_out(refused)]))


def refuse_untold(changes: Sequence[Change]) -> None:
    """Raise UsageError if a change cannot be made while the run trains; it names all of them and the remedy."""
    problems = []
    for change in changes:
        if any(fnmatchcase(change.key, glob) for glob in TOLD):
            continue
        rule, policy, why = rule_of(change.key)
        lasting = policy == "refused" and rule != "optim.kind"
        remedy = _way_out([change]) if lasting else f"`hornbook resume RUN --{change.key} VALUE` once it has stopped"
        problems.append(f"  {_arrow(change)}: {f'{why}; ' if lasting else ''}{remedy}")
    if problems:
        may = ", ".join(TOLD)
        raise UsageError("\n".join([f"these cannot change while the run trains; {may} can", *problems]))


def _way_out(refused: Sequence[Change]) -> str:
    """The command that can do it instead: a fork, unless it refuses the same changes."""
    if any(change.key == "surgery" for change in refused):
        return "`hornbook train RECIPE --data DATA --from RUN` starts a new run from these weights alone"
    if all(change.key.endswith(".qk_norm") and change.old == "none" for change in refused):
        word = " ".join(f"--{change.key} {change.new}" for change in refused)
        return f"`hornbook fork RUN --out RUN2 {word}` adds the norms, with moments, clock and data as they are"
    if any(changes_shape(change.key) for change in refused):
        return (
            "these weights fit no other shape: without model.* settings `hornbook train RECIPE --data DATA --from RUN` "
            "starts a new run from them as they are; `hornbook grow RUN --out BASE` makes weights with more or fewer "
            "layers, or with experts, for `train --from BASE`"
        )
    return "`hornbook fork RUN --out RUN2` starts a new run from these weights"


def changes_shape(key: str) -> bool:
    """Whether weights depend on a setting: a fork refuses another value too."""
    parts = key.split(".")
    return parts[0] == "model" and parts[1] not in TRAINING_ONLY


def _arrow(change: Change) -> str:
    return f"{change.key} {toml_value(change.old)} -> {toml_value(change.new)}"
