"""Lists of tensors that one pass of torch's functions of lists updates."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

foreach: Any = torch
"""The module of the functions `_foreach_...`, which are not among its public names."""
PIECE = 2**15
"""Values of a piece on a CPU: parameter, gradient, state and the update of one fit into a core's cache together. It is
a multiple of all vectors, so that values are rounded as without pieces."""


def pieces(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Views of tensors of one shape, together all of each: on a CPU neighbours that stay in the cache while several
    functions go over them, elsewhere the tensors themselves."""
    if any(each.device.type != "cpu" or not each.is_contiguous() for each in tensors):
        yield tuple(tensors)
        return
    yield from zip(*(each.view(-1).split(PIECE) for each in tensors), strict=True)


def foreach_lists(
    group: Mapping[str, Any], state: Mapping[Tensor, Mapping[str, Tensor]], *names: str
) -> Iterator[tuple[list[Tensor], ...]]:
    """(parameters, gradients, state of each of `names`), lists of as many tensors of the same shapes, to be updated.

    On a GPU they are those of the whole group, so that a function is one kernel; on a CPU `pieces` of one parameter.
    """
    parameters = [each for each in group["params"] if each.grad is not None and each.numel()]
    rows = [(each, each.grad, *(state[each][name] for name in names)) for each in parameters]
    if any(each.device.type != "cpu" for each in parameters):
        yield tuple(list(column) for column in zip(*rows, strict=True))
        return
    for row in rows:
        for views in pieces(row):
            yield tuple([each] for each in views)


class Known:
    """Values of scalars of the state, as the host knows them: it waits for the device only where others changed them.

    That is once after a start or a swap. Values have the bits of float32, as in the state.
    """

    def __init__(self) -> None:
        self._known: dict[Tensor, tuple[int, float]] = {}
        """Version of the tensor, value."""

    def read(self, scalars: Sequence[Tensor]) -> list[float]:
        """Their values, all fetched at once if one of them is not known."""
        found = [self._known.get(each, (-1, 0.0)) for each in scalars]
        if any(version != each._version for each, (version, _) in zip(scalars, found, strict=True)):
            values = values_of(scalars)
            self._known |= {each: (each._version, value) for each, value in zip(scalars, values, strict=True)}
            return values
        return [value for _, value in found]

    def write(self, scalar: Tensor, value: float) -> None:
        """Set one to a value, without a wait."""
        scalar.fill_(value)
        self._known[scalar] = scalar._version, float(np.float32(value))


def values_of(scalars: Sequence[Tensor]) -> list[float]:
    """Values on the device; the host waits."""
    return torch.stack(list(scalars)).tolist()
