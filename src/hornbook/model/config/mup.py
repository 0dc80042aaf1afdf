"""Factors of a model and its optimizer that follow from the model's size and from the size its settings were tuned at.

muP and CompleteP (Yang et al. 2022, arXiv 2203.03466, table 8; Dey et al. 2025, arXiv 2505.01618, table 1): with
m = width / base_width, D = layers / base_layers and a = depth_power,

| key | value |
|---|---|
| model.head.scale | output / m |
| model.attention.scale | 1 / head_dim, at the base size too |
| model.block.multiplier | D^-a, where base_layers is given |

They are part of what the model computes, so a checkpoint holds them as plain values. Standard deviations are in
`hornbook.model.init.schemes`. For Adam, by parameter:

| parameter | learning rate | eps | weight decay |
|---|---|---|---|
| matrices in blocks | D^(a - 1) / m | D^-a / m | m |
| norms and biases in blocks | D^(a - 1) | D^-a / m | 1 |
| other matrices | 1 / m | 1 / m | m |
| embedding, positions, head, last norm | 1 | 1 / m | 1 |

Decay is multiplied by the learning rate when it is applied, so the factor m keeps the decay of a matrix as it is at the
base width. Gradients shrink with m and D^a, which is why eps has to.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.init_config import MuP
from hornbook.model.config.model_config import ModelConfig, PreNorm
from hornbook.optim.config.rule import Factors
from hornbook.settings.fields import Config

Keys = tuple[str | int, ...]
Node = TypeVar("Node", bound=Config)


def derived_factors(model: ModelConfig) -> dict[Keys, float]:
    """Path below `model` -> value that muP gives it; empty under another scheme."""
    init = model.init
    if not isinstance(init, MuP):
        return {}
    found: dict[Keys, float] = {}
    if isinstance(model.head, LMHead):
        found["head", "scale"] = init.output * init.base_width / model.width
    found |= {(*keys, "scale"): 1 / head_dim for keys, head_dim in _attentions(model)}
    if init.base_layers is not None and isinstance(model.block, PreNorm):
        found["block", "multiplier"] = (init.base_layers / model.layers) ** init.depth_power
    return found


def _attentions(model: ModelConfig) -> Iterator[tuple[Keys, int]]:
    """Where the configurations of softmax attention are, and how wide their heads."""
    parts = [(("attention",), model.attention)]
    parts += [(("first", i, "attention"), layer.attention) for i, layer in enumerate(model.first)]
    parts += [(("pattern", i, "attention"), layer.attention) for i, layer in enumerate(model.pattern)]
    for keys, part in parts:
        if isinstance(part, FullAttentionConfig):
            yield keys, part.head_dim or model.width // model.heads


def unfit_for_mup(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """(dotted key, what is wrong) of parts that have no place for the factors of muP."""
    init = model.init
    if not isinstance(init, MuP):
        return
    if not isinstance(model.head, LMHead):
        yield "model.head.kind", f"muP scales what the head reads, which {model.head.kind!r} cannot: take 'lm'"
    if init.base_layers is None:
        return
    if not isinstance(model.block, PreNorm):
        text = f"model.init.base_layers scales branches, which {model.block.kind!r} cannot: take 'pre'"
        yield "model.block.kind", text
    if model.encoder_layers not in (None, model.layers):
        yield "model.encoder_layers", "model.init.base_layers scales both stacks alike: give them the same depth"


def with_value(node: Node, keys: Keys, value: float) -> Node:
    """A copy of a configuration with one value replaced."""
    name, rest = str(keys[0]), keys[1:]
    part = getattr(node, name)
    if not rest:
        new = value
    elif isinstance(part, list):
        number = int(rest[0])
        new = [*part[:number], with_value(part[number], rest[1:], value), *part[number + 1 :]]
    else:
        new = with_value(part, rest, value)
    return node.model_copy(update={name: new})


def differs(given: float | None, wanted: float) -> bool:
    """Whether a value that someone gave is another than the one that follows."""
    return given is None or not math.isclose(given, wanted, rel_tol=1e-9)


# ---- Factors of the optimizer


def learning_factors(roles: Mapping[str, str], cfg: ModelConfig) -> dict[str, Factors]:
    """Factors by parameter name, from the roles of all; empty where the scheme is not muP."""
    init = cfg.init
    if not isinstance(init, MuP):
        return {}
    m = cfg.width / init.base_width
    depth = cfg.layers / init.base_layers if init.base_layers else 1.0
    return {name: _factors(role, "blocks." in name, m, depth, init.depth_power) for name, role in roles.items()}


def _factors(role: str, in_block: bool, m: float, depth: float, power: float) -> Factors:
    lr, eps = (depth ** (power - 1), depth**-power / m) if in_block else (1.0, 1 / m)
    return Factors(lr / m, eps, m) if role == "matrix" else Factors(lr, eps, 1.0)
