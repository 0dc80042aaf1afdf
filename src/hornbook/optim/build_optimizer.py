"""An optimizer and its parameter groups, built from roles.

Decay is decided by what a parameter is (its role), never by its name or rank: matrices and the head decay; norms,
biases and positions do not; embeddings (a tied head is one) follow `decay_embeddings`. `optim.groups` may say otherwise
for parameters by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn import Parameter

from hornbook.errors import UsageError
from hornbook.optim.config.optimizer_config import OptimizerConfig, ParameterGroup
from hornbook.optim.config.rule import Factors, Shape, UpdateRule
from hornbook.optim.optimizer import Optimizer, WholeParameters

_GroupKey = tuple[bool, Factors, float | None, tuple[tuple[str, Any], ...]]
"""Whether a group decays, its factors, a decay of its own, and the rule's settings for the role."""
ROLES = frozenset({"embedding", "position", "head", "matrix", "norm", "vector"})


def build_optimizer(
    named_parameters: Mapping[str, Parameter],
    roles: Mapping[str, str],
    config: OptimizerConfig,
    factors: Mapping[str, Factors] | None = None,
    shapes: Mapping[str, Shape] | None = None,
    whole: WholeParameters | None = None,
) -> Optimizer:
    """An optimizer over every parameter exactly once, with its state allocated (zero) and its peak learning rate.

    `named_parameters` are this rank's shards. `roles` names the role of each parameter
    (`hornbook.model.build_model.parameter_roles`). A tensor that appears under two names (tied head) is taken once,
    under its first name. `factors` (`hornbook.model.config.mup`) multiply settings of the parameters they name. Where a
    rank has shards, `shapes` are those of the whole parameters, and `whole` gives whole ones to rules that need them.
    """
    shapes = shapes or {name: tuple(parameter.shape) for name, parameter in named_parameters.items()}
    rules = assign_rules(roles, config, {name: shapes[name] for name in _once(named_parameters)}, shapes)
    for name, rule in rules.items():
        if named_parameters[name].dtype == torch.bfloat16 and not rule.stochastic:
            raise UsageError(
                f"optim: {type(rule).__name__} cannot update {name}, which is bfloat16: small updates would be lost; "
                'take adamw or adamw8bit, which round stochastically, or train.precision = "bf16"'
            )
    if whole is not None:
        named_parameters = whole.take(name for name, rule in rules.items() if rule.whole)
    groups = parameter_groups(named_parameters, roles, config, factors, rules)
    optimizer = Optimizer(config, groups, shapes, whole)
    optimizer.decaying = decaying(roles, config)
    optimizer.set_learning_rate(config.lr)
    return optimizer


def assign_rules(
    roles: Mapping[str, str], config: OptimizerConfig, shapes: Mapping[str, Shape], known: Iterable[str] = ()
) -> dict[str, UpdateRule]:
    """The update rule of each parameter. Raises UsageError where it cannot update it, or a group matches none.

    known: names of the whole model, where `shapes` has those of this rank alone.
    """
    known = [*shapes, *known]
    for number, group in enumerate(config.groups):
        if not any(fnmatchcase(name, group.match) for name in known):
            names = ", ".join(known[:5])
            raise UsageError(f"optim.groups.{number}.match: no parameter is called {group.match!r}; names are {names}")
    rules = dict[str, UpdateRule]()
    for name, shape in shapes.items():
        group = _group_of(name, config)
        rule = ((group and group.rule) or config).rule_for(roles[name], shape)
        rules[name] = next((each for each in rules.values() if each is rule or each == rule), rule)
        if problem := rule.refusal(roles[name], shape):
            raise UsageError(
                f"optim: {type(rule).__name__} cannot update {name} {list(shape)}: {problem}; name another rule, as in "
                f'`optim.groups = [{{ match = "{name}", rule = {{ kind = "adamw" }} }}]`'
            )
    return rules


def parameter_groups(
    named_parameters: Mapping[str, Parameter],
    roles: Mapping[str, str],
    config: OptimizerConfig,
    factors: Mapping[str, Factors] | None = None,
    rules: Mapping[str, UpdateRule] | None = None,
) -> list[tuple[UpdateRule, list[dict[str, Any]]]]:
    """Of each update rule its groups in torch's form: `params` as (name, parameter) pairs, and the rule's settings.

    One group for each combination of decay and factors, those that decay first.
    """
    members: dict[int, dict[_GroupKey, list[tuple[str, Parameter]]]] = {}
    found: dict[int, UpdateRule] = {}
    for name, parameter in _once(named_parameters).items():
        rule, group = (rules or {}).get(name, config), _group_of(name, config) or ParameterGroup(match=name)
        own, decay = (factors or {}).get(name, Factors()), group.weight_decay
        lr = rule.lr if group.lr is None else group.lr
        own = own if lr == config.lr else replace(own, lr=own.lr * lr / config.lr)
        decayed = _is_decayed(name, roles[name], config)
        found[id(rule)] = rule
        key = (decayed, own, decay, tuple(rule.role_settings(roles[name]).items()))
        members.setdefault(id(rule), {}).setdefault(key, []).append((name, parameter))
    return [(found[key], _torch_groups(found[key], groups)) for key, groups in members.items()]


def _torch_groups(rule: UpdateRule, members: Mapping[_GroupKey, list[tuple[str, Parameter]]]) -> list[dict[str, Any]]:
    groups = []
    for (decayed, factors, decay, more), pairs in sorted(members.items(), key=lambda item: not item[0][0]):
        own = rule if decay is None else rule.model_copy(update={"weight_decay": decay})
        groups.append({"params": pairs, **own.group_settings(decayed, factors), **dict(more)})
    return groups


def _group_of(name: str, config: OptimizerConfig) -> ParameterGroup | None:
    return next((group for group in config.groups if fnmatchcase(name, group.match)), None)


def _is_decayed(name: str, role: str, config: OptimizerConfig) -> bool:
    group = _group_of(name, config)
    return decays(role, config) if group is None or group.weight_decay is None else group.weight_decay > 0


def decaying(roles: Mapping[str, str], config: OptimizerConfig) -> frozenset[str]:
    """Names of the parameters that decay, whatever the weight of it: what penalties of the objective are over."""
    return frozenset(name for name, role in roles.items() if _is_decayed(name, role, config))


def _once(named_parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Each tensor under its first name."""
    firsts: dict[int, str] = {}
    return {name: each for name, each in named_parameters.items() if firsts.setdefault(id(each), name) == name}


def decays(role: str, config: OptimizerConfig) -> bool:
    """Whether weight decay falls on a parameter of this role."""
    assert role in ROLES, f"unknown parameter role {role!r}"
    if role == "embedding":
        return config.decay_embeddings
    return role in ("matrix", "head")
