"""An average of the weights along a run, beside the weights that are trained."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from hornbook.optim.config.average_config import MovingAverage, UniformAverage
from hornbook.optim.config.schedule_base import Axis


class WeightAverage:
    """The average of this rank's shards of the trained parameters, in float32."""

    def __init__(
        self, config: MovingAverage | UniformAverage, parameters: Mapping[str, nn.Parameter], axis: Axis
    ) -> None:
        """`axis`: the planned length of the run, on which `config` lies."""
        self.config, self._axis, self._parameters = config, axis, dict(parameters)
        self.tensors = {
            name: torch.zeros(each.shape, dtype=torch.float32, device=each.device) for name, each in parameters.items()
        }
        """The average by name of the parameter."""

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew with the present weights."""
        for name, parameter in self._parameters.items():
            self.tensors[name].copy_(parameter)

    @torch.no_grad()
    def update(self, before: int, after: int) -> None:
        """Take in the weights of a step that was applied, which took the clock from `before` to `after` tokens."""
        share = self.config.share(before, after, self._axis)
        if share == 1.0:
            self.restart()
            return
        for name, parameter in self._parameters.items():
            self.tensors[name].lerp_(parameter.float(), share)

    def in_place(self) -> contextlib.AbstractContextManager[None]:
        """The parameters hold the average inside of this context."""
        return held_weights(self._parameters, self.tensors)


@contextlib.contextmanager
def held_weights(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> Iterator[None]:
    """The parameters hold `values` inside; afterwards, whatever happens, they have their own bits again.

    Both are this rank's shards, by the same names. It takes a copy of the parameters.
    """
    with torch.no_grad():
        own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.copy_(values[name])
            with torch.enable_grad():
                yield
        finally:
            for name, parameter in parameters.items():
                parameter.copy_(own[name])
