"""An optimizer and its parameter groups, built from roles.

Decay is decided by what a parameter is (its role), never by its name or rank: matrices and the head decay; norms,
biases and positions do not; embeddings (a tied head is one) follow `decay_embeddings`.
"""

from collections.abc import Mapping
from typing import Any

from torch.nn import Parameter

from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.config.optimizer import Factors, OptimizerConfig
from hornbook.optim.optimizer import Optimizer

ROLES = frozenset({"embedding", "position", "head", "matrix", "norm", "vector"})


def build_optimizer(
    named_parameters: Mapping[str, Parameter],
    roles: Mapping[str, str],
    config: AnyOptimizer,
    factors: Mapping[str, Factors] | None = None,
) -> Optimizer:
    """An optimizer over every parameter exactly once, with its state allocated (zero) and its peak learning rate.

    `roles` names the role of each parameter (`hornbook.model.build.parameter_roles`). A tensor that
    appears under two names (tied head) is taken once, under its first name. `factors` (`hornbook.model.config.mup`)
    multiply settings of the parameters they name.
    """
    optimizer = Optimizer(config, parameter_groups(named_parameters, roles, config, factors))
    optimizer.set_learning_rate(config.lr)
    return optimizer


def parameter_groups(
    named_parameters: Mapping[str, Parameter],
    roles: Mapping[str, str],
    config: OptimizerConfig,
    factors: Mapping[str, Factors] | None = None,
) -> list[dict[str, Any]]:
    """Groups in torch's form: `params` as (name, parameter) pairs, and the settings that the optimizer gives a group.

    One for each combination of decay and factors, those that decay first.
    """
    members: dict[tuple[bool, Factors], list[tuple[str, Parameter]]] = {}
    seen: set[int] = set()
    for name, parameter in named_parameters.items():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        key = decays(roles[name], config), (factors or {}).get(name, Factors())
        members.setdefault(key, []).append((name, parameter))
    return [
        {"params": pairs, **config.group_settings(decayed, factor)}
        for (decayed, factor), pairs in sorted(members.items(), key=lambda item: not item[0][0])
    ]


def decays(role: str, config: OptimizerConfig) -> bool:
    """Whether weight decay falls on a parameter of this role."""
    assert role in ROLES, f"unknown parameter role {role!r}"
    if role == "embedding":
        return config.decay_embeddings
    return role in ("matrix", "head")
