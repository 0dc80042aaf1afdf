"""Factors of the optimizer's settings under muP and CompleteP, one per parameter.

With m = width / base_width, D = layers / base_layers and a = depth_power, for Adam (Yang et al. 2022, arXiv 2203.03466,
table 8; Dey et al. 2025, arXiv 2505.01618, table 1):

| parameter | learning rate | eps | weight decay |
|---|---|---|---|
| matrices in blocks | D^(a - 1) / m | D^-a / m | m |
| norms and biases in blocks | D^(a - 1) | D^-a / m | 1 |
| other matrices | 1 / m | 1 / m | m |
| embedding, positions, head, last norm | 1 | 1 / m | 1 |

Decay is multiplied by the learning rate when it is applied, so the factor m leaves what it takes off a matrix as at the
base width. Gradients shrink with m and D^a, which is why eps has to.
"""

from collections.abc import Mapping

from hornbook.model.config.init import MuP
from hornbook.model.config.model import ModelConfig
from hornbook.optim.config.optim import Factors


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
