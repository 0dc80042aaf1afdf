"""The settings of an optimizer that takes over from another while a run trains (`hornbook tell`)."""

from typing import Any

from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import UpdateRule
from hornbook.settings.fields import Config, Duration

SAME_UPDATE = ("adam", "adamw", "adamw8bit")
"""Kinds with one update: a change between them needs no new rise of the learning rate."""
DECOUPLED = ("adamw", "adamw8bit", "lamb", "lion", "muon", "soap", "schedule_free", "schedule_free_sgd")
"""Kinds whose decay shrinks weights by learning rate x decay; that of the others is a term of the gradient."""
RELATIVE_RATES = {"adam": 1.0, "adamw": 1.0, "adamw8bit": 1.0, "muon": 1.0, "soap": 1.0, "lion": 0.2}
"""Learning rates that make updates of about the same size. Every value of one of Lion is 1 or -1: Chen et al. 2023
(arXiv 2302.06675, section 5) take 3 to 10 times less than for AdamW. Muon scales its own to those of AdamW (Moonlight,
arXiv 2502.16982)."""
REWARM_STEPS = 100
"""Steps in which the learning rate rises again after a change to a rule of another family."""


def kind_of_rule(rule: UpdateRule) -> str:
    """The `kind` of a rule: its name, or an import path."""
    return str(getattr(rule, "kind", type(rule).__qualname__))


def rewarms(old: str, new: str) -> bool:
    """Whether the learning rate rises again after a change between two kinds of optimizers."""
    return old != new and not {old, new} <= set(SAME_UPDATE)


def carried_settings(old: OptimizerConfig, new: OptimizerConfig) -> dict[str, Any]:
    """Field -> value of those settings that an optimizer of kind `new` takes over from `old`, where none is given.

    Those that every optimizer has, but no schedule where the new kind has one of its own; between kinds of Adam betas
    and eps; where the learning rate that makes updates of the same size is known (`RELATIVE_RATES`), that and a
    decoupled decay that shrinks weights as before.
    """
    kinds, fields = (kind_of_rule(old), kind_of_rule(new)), type(new).model_fields
    common = set(OptimizerConfig.model_fields) - set(UpdateRule.model_fields)
    if fields["schedule"].default != OptimizerConfig.model_fields["schedule"].default:
        common.remove("schedule")
    found = {name: _plain(getattr(old, name)) for name in common if name in fields}
    found |= _rates(old, *kinds)
    inner = getattr(old, "rest", old)  # of Muon: AdamW for what is no matrix
    if kind_of_rule(inner) in SAME_UPDATE and (kinds[1] in SAME_UPDATE or "rest" in fields):
        moments = {name: getattr(inner, name) for name in ("beta1", "beta2", "eps")}
        rest = moments | {"lr": inner.lr} | ({"weight_decay": inner.weight_decay} if kinds[0] in DECOUPLED else {})
        found |= {"rest": rest} if "rest" in fields else moments
    return found


def _rates(old: OptimizerConfig, before: str, after: str) -> dict[str, Any]:
    if before not in RELATIVE_RATES or after not in RELATIVE_RATES:
        return {}
    factor = RELATIVE_RATES[after] / RELATIVE_RATES[before]
    decay = {"weight_decay": _rounded(old.weight_decay / factor)} if {before, after} <= set(DECOUPLED) else {}
    return {"lr": _rounded(old.lr * factor)} | decay


def _rounded(value: float) -> float:
    """Without the last digits, which a product has changed: 0.0006 in place of 0.0006000000000000001."""
    return float(f"{value:.12g}")


def _plain(value: Any) -> Any:
    """A config as nested dicts, as sources of settings have it."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Duration) or not isinstance(value, Config):
        return value.model_dump() if isinstance(value, Duration) else value
    return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
