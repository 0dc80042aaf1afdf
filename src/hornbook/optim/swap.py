"""The state of one update rule as the state of another, for a change of optimizer while a run trains.

Rules that keep averages of the gradient are read and written through Adam's terms: the exponential average m of the
gradient, that of its square v, and the number t of steps that these are over. So a table of n rules, instead of n^2
pairs, converts each to each:

| rule | m | v | t |
|---|---|---|---|
| Adam, AdamW, LAMB | exp_avg | exp_avg_sq | step |
| AdamW of 8 bits | exp_avg, its codes decoded | exp_avg_sq, its codes decoded | step |
| RMSProp | none | square_avg | step |
| SGD with momentum b, dampening d | momentum_buffer (1 - b) / (1 - d) | none | none |
| Lion, Muon | their momentum | none | none |
| Adafactor | exp_avg, if kept | row x column / mean of the rows | step |

A rule that needs what the other does not know begins with new state, and so do rules that are not in the table (SOAP,
whose averages are in another basis, and those from outside). After any change but those between kinds of Adam the
learning rate rises again from 0 (`config.swap.rewarms`). t goes with m and v, so that they are not corrected a second
time as if they had begun at 0; averages that begin at 0 have t = 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hornbook.optim.config.rule import UpdateRule
from hornbook.optim.config.swap_config import kind_of_rule
from hornbook.optim.low_precision.codes import dequantize, quantize

ADAM = ("adam", "adamw", "lamb")
"""Kinds with this state."""
Tensors = Mapping[str, Tensor]
"""State of one parameter by name, whole."""


@dataclass(frozen=True)
class Moments:
    """What the state of a rule says in Adam's terms; None: nothing."""

    first: Tensor | None = None
    second: Tensor | None = None
    step: Tensor | None = None


def convert(old: UpdateRule, before: Tensors, new: UpdateRule, after: Tensors) -> None:
    """Fill `after`, the state of one parameter, which is zero, from `before`. Tensors are those of whole parameters."""
    kinds = kind_of_rule(old), kind_of_rule(new)
    if kinds[0] == kinds[1]:
        for name, tensor in after.items() if after.keys() <= before.keys() else ():
            if before[name].shape == tensor.shape and _alike(before[name], tensor):
                tensor.copy_(before[name])
    elif kinds[0] in _READ and kinds[1] in _WRITE:
        _WRITE[kinds[1]](new, _READ[kinds[0]](old, before), after)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether values of one can be rounded to the other's dtype."""
    return one.dtype == other.dtype or (one.is_floating_point() and other.is_floating_point())


def _read_adam(_: UpdateRule, state: Tensors) -> Moments:
    return Moments(state.get("exp_avg"), state.get("exp_avg_sq"), state.get("step"))


def _write_adam(_: UpdateRule, moments: Moments, state: Tensors) -> None:
    if moments.first is None or moments.second is None or moments.step is None:
        return
    for name, value in (("exp_avg", moments.first), ("exp_avg_sq", moments.second), ("step", moments.step)):
        _set(state, name, value)


def _read_8bit(_: UpdateRule, state: Tensors) -> Moments:
    first = dequantize(state["exp_avg"], state["exp_avg_scale"], signed=True)
    return Moments(first, dequantize(state["exp_avg_sq"], state["exp_avg_sq_scale"], signed=False), state["step"])


def _write_8bit(_: UpdateRule, moments: Moments, state: Tensors) -> None:
    if moments.first is None or moments.second is None or moments.step is None:
        return
    _set(state, "step", moments.step)
    for name, value, signed in (("exp_avg", moments.first, True), ("exp_avg_sq", moments.second, False)):
        codes, scales = quantize(value.float(), signed)
        _set(state, name, codes)
        _set(state, f"{name}_scale", scales)


def _read_rmsprop(_: UpdateRule, state: Tensors) -> Moments:
    return Moments(None, state.get("square_avg"), state.get("step"))


def _write_rmsprop(_: UpdateRule, moments: Moments, state: Tensors) -> None:
    if moments.second is not None and moments.step is not None:
        _set(state, "square_avg", moments.second)
        _set(state, "step", moments.step)


def _read_sgd(rule: UpdateRule, state: Tensors) -> Moments:
    buffer = state.get("momentum_buffer")
    return Moments() if buffer is None else Moments(buffer / _sum_of_weights(rule))


def _write_sgd(rule: UpdateRule, moments: Moments, state: Tensors) -> None:
    if moments.first is not None:
        _set(state, "momentum_buffer", moments.first * _sum_of_weights(rule))


def _sum_of_weights(rule: UpdateRule) -> float:
    """What the buffer is for a gradient of 1 that does not change."""
    return (1 - float(getattr(rule, "dampening", 0.0))) / (1 - float(getattr(rule, "momentum", 0.0)))


_MOMENTUM = ("exp_avg", "momentum", "momentum_buffer")
"""What Lion and Muon call the average of the gradient."""


def _read_momentum(_: UpdateRule, state: Tensors) -> Moments:
    return Moments(next((state[name] for name in _MOMENTUM if name in state), None))


def _write_momentum(_: UpdateRule, moments: Moments, state: Tensors) -> None:
    for name in _MOMENTUM:
        if name in state and moments.first is not None:
            _set(state, name, moments.first)


def _read_adafactor(_: UpdateRule, state: Tensors) -> Moments:
    rows, columns, whole = (state.get(name) for name in ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"))
    if rows is not None and columns is not None and columns.dim() == 1:
        whole = torch.outer(rows, columns) / rows.mean().clamp(min=1e-30)
    return Moments(state.get("exp_avg"), whole, state.get("step"))


def _write_adafactor(_: UpdateRule, moments: Moments, state: Tensors) -> None:
    second = moments.second
    if second is None or moments.step is None:
        return
    rows, columns, whole = (state.get(name) for name in ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"))
    if rows is not None and columns is not None and columns.dim() == 1:
        rows.copy_(second.mean(1))
        columns.copy_(second.mean(0))
    elif whole is not None:
        whole.copy_(second)
    else:
        return
    _set(state, "step", moments.step)
    if moments.first is not None:
        _set(state, "exp_avg", moments.first)


def _set(state: Tensors, name: str, value: Tensor) -> None:
    if name in state and state[name].shape == value.shape:
        state[name].copy_(value)


_READ: dict[str, Callable[[UpdateRule, Tensors], Moments]] = {
    **dict.fromkeys(ADAM, _read_adam),
    "adamw8bit": _read_8bit,
    "rmsprop": _read_rmsprop,
    "sgd": _read_sgd,
    "lion": _read_momentum,
    "muon": _read_momentum,
    "adafactor": _read_adafactor,
}
_WRITE: dict[str, Callable[[UpdateRule, Moments, Tensors], None]] = {
    **dict.fromkeys(ADAM, _write_adam),
    "adamw8bit": _write_8bit,
    "rmsprop": _write_rmsprop,
    "sgd": _write_sgd,
    "lion": _write_momentum,
    "muon": _write_momentum,
    "adafactor": _write_adafactor,
}


def direction(rule: UpdateRule, state: Tensors) -> Tensor | None:
    """The next update of a parameter at learning rate 1 without decay, if the gradient is what the state expects.

    None for rules of which it is not known.
    """
    kind = kind_of_rule(rule)
    moments = _READ[kind](rule, state) if kind in _READ else Moments()
    first, second, step = moments.first, moments.second, moments.step
    if kind == "sgd" and first is not None:
        return first * _sum_of_weights(rule)
    if kind not in ("adam", "adamw", "adamw8bit") or first is None or second is None or step is None:
        return None
    decays: Any = rule
    root = (second / (1 - decays.beta2**step)).sqrt() + decays.eps
    return (first / (1 - decays.beta1**step) / root).nan_to_num()  # 0 / 0 before the first step
