"""Lists of tensors that one pass of `torch._foreach` functions updates."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

PIECE = 2**15
"""Values of a piece on a CPU: parameter, gradient, state and the update of one fit into a core's cache together. It is
a multiple of all vectors, so that values are rounded as without pieces."""


def foreach_lists(
    group: Mapping[str, Any], state: Mapping[Tensor, Mapping[str, Tensor]], *names: str
) -> Iterator[tuple[list[Tensor], ...]]:
    """(parameters, gradients, state of each of `names`), lists of as many tensors of the same shapes, to be updated.

    On a GPU they are those of the whole group, so that a function is one kernel. On a CPU they are pieces of one tensor
    that stay in the cache from one function to the next.
    """
    parameters = [each for each in group["params"] if each.grad is not None and each.numel()]
    rows = [(each, each.grad, *(state[each][name] for name in names)) for each in parameters]
    if any(each.device.type != "cpu" for each in parameters):
        yield tuple(list(column) for column in zip(*rows, strict=True))
        return
    for row in rows:
        pieces = [tensor.view(-1).split(PIECE) if tensor.is_contiguous() else (tensor,) for tensor in row]
        if len({len(each) for each in pieces}) > 1:  # a gradient that is not laid out as its parameter is
            pieces = [(tensor,) for tensor in row]
        for column in zip(*pieces, strict=True):
            yield tuple([each] for each in column)
