"""The optimizer's memory as named tensors, for checkpoints.

Only moments and step counts are stored. Learning rate, betas and decay come from the configuration at every
start; torch's `load_state_dict` would silently bring the old ones back.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hornbook.errors import IntegrityError


def read_moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`PARAMETER.FIELD` -> tensor (exp_avg and exp_avg_sq in the parameter's shape, step a float32 scalar)."""
    tensors = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            for field, value in optimizer.state[parameter].items():
                tensors[f"{name}.{field}"] = value.detach()
    return tensors


def load_moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` (as `read_moments` returns them) into the optimizer, in place.

    Raises IntegrityError if a tensor is missing, left over or of another shape: moments of another model
    would train on without a sign of it.
    """
    present = read_moments(optimizer)
    check_cover({name: tuple(t.shape) for name, t in present.items()}, {n: tuple(t.shape) for n, t in tensors.items()})
    with torch.no_grad():
        for name, target in present.items():
            target.copy_(tensors[name])


def check_cover(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise IntegrityError unless both have the same names with the same shapes."""
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is not of this model" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {list(found[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise IntegrityError("the checkpoint does not fit: " + "; ".join(problems[:5]) + more)
