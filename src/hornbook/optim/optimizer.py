"""An optimizer at work: the updates of its configuration, their state, and the refusal of a non-finite step."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from hornbook.errors import UsageError
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import Shape, StateTensor, UpdateRule
from hornbook.optim.low_precision.narrow_adamw import LowPrecisionAdamW


class WholeParameters(Protocol):
    """Whole parameters for rules that need them (`UpdateRule.whole`), where ranks share each parameter."""

    on_host: bool
    """They are in memory of the host beside a GPU, and the host waits for their gradients."""

    def take(self, names: Iterable[str]) -> Mapping[str, Parameter]:
        """What this rank updates: of the parameters `names` those it owns whole, the others empty; else its shards."""
        ...

    def starts(self) -> Mapping[str, Shape]:
        """First index of each tensor of `take` in its whole parameter."""
        ...

    def gather(self) -> None:
        """Bring values and gradients of the whole parameters from the shards of all ranks."""

    def scatter(self) -> None:
        """Bring the values back, and drop the gradients."""


class AveragingUpdate(Protocol):
    """What `build` of a rule with `averages` returns."""

    def evaluation_weights(self, parameter: Tensor) -> Tensor:
        """The weights to evaluate and to save in place of `parameter`, in a tensor of their own."""
        ...


class Optimizer:
    """Updates this rank's shards. Its state is exactly the tensors that its rules declare, from before the first step.

    Only these tensors go into checkpoints. Learning rate, betas and decay come from the configuration at every start;
    torch's `load_state_dict` would silently bring the old ones back.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        groups: Sequence[tuple[UpdateRule, list[dict[str, Any]]]],
        shapes: Mapping[str, Shape],
        whole: WholeParameters | None = None,
    ) -> None:
        """`groups` of each rule as `UpdateRule.build` takes them; `shapes` of the whole parameters, by name."""
        self.config = config
        self.updates = [(rule, rule.build(members)) for rule, members in groups]
        self._shapes, self._whole, self._checked = shapes, whole, False
        self.decaying = frozenset[str]()
        """Names of the parameters that decay, whatever the weight of it; `build_optimizer` sets it."""
        for rule, update in self.updates:
            for name, parameter in _named(update):
                update.state[parameter] = {
                    each.name: parameter.detach()
                    if each.is_parameter
                    else torch.zeros(
                        each.shape(tuple(parameter.shape)), dtype=_dtype(each, parameter), device=parameter.device
                    )
                    for each in rule.state_tensors(shapes[name])
                }
            if isinstance(update, LowPrecisionAdamW) and whole is not None:
                starts = whole.starts()
                update.first_values = {name: _first_value(starts[name], shapes[name]) for name, _ in _named(update)}

    def set_learning_rate(self, lr: float) -> None:
        """Use `lr`, times its factor, in every group from the next step on."""
        for _, update in self.updates:
            for group in update.param_groups:
                group["lr"] = lr * group["lr_factor"]

    @property
    def asks_host(self) -> bool:
        """Whether the host must know before the update if a step is refused; torch's fused kernels look themselves."""
        return (self._whole is not None and self._whole.on_host) or not all(self._fused)

    @property
    def _fused(self) -> list[bool]:
        return [getattr(update, "_step_supports_amp_scaling", False) for _, update in self.updates]

    def step(self, found_nonfinite: Tensor | float | None = None) -> None:
        """Update the parameters, unless the scalar `found_nonfinite` is 1.0: then no bit of them or the state changes.

        Where the update asks the host (`asks_host`), it waits for a scalar on a GPU, and not for a number.
        """
        if found_nonfinite is not None and self.asks_host:
            if bool(found_nonfinite):
                return
            found_nonfinite = None
        if self._whole is not None:
            self._whole.gather()
        for (_, update), is_fused in zip(self.updates, self._fused, strict=True):
            if is_fused:  # torch's protocol for such kernels: they read these two attributes
                update.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
                update.found_inf = found_nonfinite  # pyright: ignore[reportAttributeAccessIssue]
            update.step()
        if self._whole is not None:
            self._whole.scatter()
        if not self._checked:
            list(self.state())  # an error comes with the first step, not with the first checkpoint
            self._checked = True

    def rules(self) -> dict[str, UpdateRule]:
        """The update rule of each parameter."""
        return {name: rule for rule, update in self.updates for name, _ in _named(update)}

    def evaluation_weights(self) -> dict[str, Tensor]:
        """Weights to evaluate and to save in place of those that are trained, by name: copies; of most rules none."""
        found = [update for rule, update in self.updates if rule.averages]
        return {
            name: cast("AveragingUpdate", update).evaluation_weights(parameter)
            for update in found
            for name, parameter in _named(update)
        }

    def state(self) -> Iterator[tuple[str, StateTensor, Tensor]]:
        """(parameter, declaration, tensor) of all state. Raises UsageError where it is not what was declared."""
        for rule, update in self.updates:
            for name, parameter in _named(update):
                yield from ((name, each, tensor) for each, tensor in self._state_of(rule, update, name, parameter))

    def _state_of(
        self, rule: UpdateRule, update: torch.optim.Optimizer, name: str, parameter: Tensor
    ) -> Iterator[tuple[StateTensor, Tensor]]:
        kept, shape, tensors = update.state[parameter], tuple(parameter.shape), rule.state_tensors(self._shapes[name])
        found = {key: _described(value) for key, value in kept.items()}
        declared = {each.name: f"{_dtype(each, parameter)} {list(each.shape(shape))}" for each in tensors}
        if found != declared:
            raise UsageError(
                f"optim.kind: of {name} {list(shape)} it keeps {found} and declares {declared}: undeclared state "
                f"is not saved; `{type(rule).__name__}.state_tensors` must list all of it"
            )
        yield from ((each, kept[each.name].detach()) for each in tensors)


def _named(update: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for group in update.param_groups:
        yield from zip(group["param_names"], group["params"], strict=True)


def _first_value(start: Shape, shape: Shape) -> int:
    """Index of a shard's first value among all of its parameter; shards divide parameters between rows."""
    assert not any(start[1:]), "a shard is not a range of rows"
    return start[0] * math.prod(shape[1:]) if start else 0


def _dtype(declared: StateTensor, parameter: Tensor) -> torch.dtype:
    return parameter.dtype if declared.dtype == "parameter" else getattr(torch, declared.dtype)


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
