"""Optimizers and their parameter groups, built from roles.

Decay is decided by what a parameter is (its role), never by its name or rank: matrices and the head decay;
norms, biases and positions do not; embeddings (a tied head is one) follow `decay_embeddings`. AdamW is
Loshchilov and Hutter 2019 (arXiv 1711.05101, algorithm 2) in torch's fused kernel, which honours
`found_inf`: a refused step leaves weights, moments and step counts bit for bit as they were.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Parameter

from hornbook.optim.config.optim import Factors, OptimConfig

ROLES = frozenset({"embedding", "position", "head", "matrix", "norm", "vector"})


def build_optimizer(
    named_parameters: Mapping[str, Parameter],
    roles: Mapping[str, str],
    config: OptimConfig,
    factors: Mapping[str, Factors] | None = None,
) -> torch.optim.Optimizer:
    """An optimizer over every parameter exactly once, with its moments allocated (zero).

    `roles` names the role of each parameter (`hornbook.model.build.parameter_roles`). A tensor that
    appears under two names (tied head) is taken once, under its first name. `factors` (`hornbook.model.config.mup`)
    multiply learning rate, eps and decay of the parameters they name.
    """
    groups = parameter_groups(named_parameters, roles, config, factors or {})
    optimizer = torch.optim.AdamW(
        groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, weight_decay=0.0, fused=True
    )
    set_learning_rate(optimizer, config.lr)
    _allocate_moments(optimizer)
    return optimizer


def parameter_groups(
    named_parameters: Mapping[str, Parameter],
    roles: Mapping[str, str],
    config: OptimConfig,
    factors: Mapping[str, Factors] | None = None,
) -> list[dict[str, Any]]:
    """Groups in torch's form: `params` as (name, parameter) pairs, `weight_decay`, `eps`, and `lr_factor`.

    One for each combination of settings, those that decay first.
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
        {
            "params": pairs,
            "weight_decay": config.weight_decay * factor.weight_decay if decayed else 0.0,
            "eps": config.eps * factor.eps,
            "lr_factor": factor.lr,
        }
        for (decayed, factor), pairs in sorted(members.items(), key=lambda item: not item[0][0])
    ]


def decays(role: str, config: OptimConfig) -> bool:
    """Whether weight decay falls on a parameter of this role."""
    assert role in ROLES, f"unknown parameter role {role!r}"
    if role == "embedding":
        return config.decay_embeddings
    return role in ("matrix", "head")


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr`, times its factor, in every group from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def _allocate_moments(optimizer: torch.optim.Optimizer) -> None:
    """Create the state torch would create at the first step, so that memory and saves do not depend on the step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format, requires_grad=False),
            }
