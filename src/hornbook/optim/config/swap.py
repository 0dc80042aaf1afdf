"""The settings of an optimizer that takes over from another while a run trains (`hornbook tell`)."""

from typing import Any

from hornbook.optim.config.optimizer import OptimizerConfig
from hornbook.optim.config.rule import UpdateRule
from hornbook.settings.fields import Config, Duration

ADAM = ("adam", "adamw", "lamb")
"""Rules with Adam's state. Between Adam and AdamW nothing is lost."""
RELATIVE_RATES = {"adam": 1.0, "adamw": 1.0, "lion": 0.2}
"""Learning rates that make updates of about the same size: every value of one of Lion is 1 or -1. Chen et al. 2023
(arXiv 2302.06675, section 5) take 3 to 10 times less than for AdamW."""
REWARM_STEPS = 100
"""Steps in which the learning rate rises again after a change to a rule of another family."""


def kind_of_rule(rule: UpdateRule) -> str:
    """The `kind` of a rule: its name, or an import path."""
    return str(getattr(rule, "kind", type(rule).__qualname__))


def rewarms(old: str, new: str) -> bool:
    """Whether the learning rate rises again after a change between two kinds of optimizers."""
    return old != new and not {old, new} <= set(ADAM)


def carried_settings(old: OptimizerConfig, new: OptimizerConfig) -> dict[str, Any]:
    """Field -> value of those settings that an optimizer of kind `new` takes over from `old`, where none is given.

    Those that every optimizer has; between Adam and AdamW all that both have. Where the learning rate that makes
    updates of the same size is known (`RELATIVE_RATES`), that and a decay that shrinks weights as before.
    """
    kinds = kind_of_rule(old), kind_of_rule(new)
    common = set(OptimizerConfig.model_fields) - set(UpdateRule.model_fields)
    if set(kinds) <= set(ADAM):
        common |= set(type(old).model_fields) - {"kind", "weight_decay", "lr"}
    found = {name: _plain(getattr(old, name)) for name in common if name in type(new).model_fields}
    if all(kind in RELATIVE_RATES for kind in kinds):
        factor = RELATIVE_RATES[kinds[1]] / RELATIVE_RATES[kinds[0]]
        found |= {"lr": old.lr * factor, "weight_decay": old.weight_decay / factor}
    return found


def _plain(value: Any) -> Any:
    """A config as nested dicts, as sources of settings have it."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Duration) or not isinstance(value, Config):
        return value.model_dump() if isinstance(value, Duration) else value
    return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
