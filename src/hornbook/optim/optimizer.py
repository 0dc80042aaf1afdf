"""An optimizer at work: the update of its configuration, its state, and the refusal of a non-finite step."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.optim.config.optimizer import OptimizerConfig, StateTensor


class Optimizer:
    """Updates this rank's shards. Its state is exactly the tensors that `config` declares, from before the first step.

    Only these tensors go into checkpoints. Learning rate, betas and decay come from the configuration at every start;
    torch's `load_state_dict` would silently bring the old ones back.
    """

    def __init__(self, config: OptimizerConfig, groups: list[dict[str, Any]]) -> None:
        """`groups` as `OptimizerConfig.build` takes them."""
        self.config, self.update = config, config.build(groups)
        self._declared = config.state_tensors()
        self._checked = False
        for _, parameter in self._parameters():
            self.update.state[parameter] = {
                each.name: torch.zeros(
                    each.shape(tuple(parameter.shape)), dtype=_dtype(each, parameter), device=parameter.device
                )
                for each in self._declared
            }

    def set_learning_rate(self, lr: float) -> None:
        """Use `lr`, times its factor, in every group from the next step on."""
        for group in self.update.param_groups:
            group["lr"] = lr * group["lr_factor"]

    def step(self, found_nonfinite: Tensor | None = None) -> None:
        """Update the parameters, unless the scalar `found_nonfinite` is 1.0: then no bit of them or the state changes.

        Torch's fused kernels look at the scalar themselves. Before any other update the host looks, and on a GPU waits.
        """
        if getattr(self.update, "_step_supports_amp_scaling", False):
            # Torch's protocol for such kernels: they read these two attributes.
            self.update.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
            self.update.found_inf = found_nonfinite  # pyright: ignore[reportAttributeAccessIssue]
        elif found_nonfinite is not None and bool(found_nonfinite):
            return
        self.update.step()
        if not self._checked:
            list(self.state())  # an error comes with the first step, not with the first checkpoint
            self._checked = True

    def state(self) -> Iterator[tuple[str, StateTensor, Tensor]]:
        """(parameter, declaration, tensor) of all state. Raises UsageError where it is not what was declared."""
        for name, parameter in self._parameters():
            kept, shape = self.update.state[parameter], tuple(parameter.shape)
            found = {key: _described(value) for key, value in kept.items()}
            declared = {each.name: f"{_dtype(each, parameter)} {list(each.shape(shape))}" for each in self._declared}
            if found != declared:
                raise UsageError(
                    f"optim.kind: of {name} {list(shape)} it keeps {found} and declares {declared}: undeclared state "
                    f"is not saved; `{type(self.config).__name__}.state_tensors` must list all of it"
                )
            for each in self._declared:
                yield name, each, kept[each.name].detach()

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        for group in self.update.param_groups:
            yield from zip(group["param_names"], group["params"], strict=True)


def _dtype(declared: StateTensor, parameter: Tensor) -> torch.dtype:
    return parameter.dtype if declared.dtype == "parameter" else getattr(torch, declared.dtype)


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
