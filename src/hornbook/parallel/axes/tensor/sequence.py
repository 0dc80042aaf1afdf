"""The residual stream divided by time over the axis `tensor` (Korthikanti et al. 2022, arXiv 2205.05198).

Norms, dropout and sums of the residual stream are computed once instead of by each rank. Where a product needs whole
rows they are gathered, and sums of products are scattered: as many bytes as one sum, and activations between products
take their share of memory.
"""

from typing import Any

from torch import Tensor, nn

from hornbook.model.forward_context import Auxiliary, Context
from hornbook.model.heads.mtp import MultiToken
from hornbook.model.layers.dropout import Dropout
from hornbook.model.transformer import Stack
from hornbook.parallel.axes.tensor.tensor_collectives import AXIS, gather, join, scatter, split
from hornbook.parallel.world import World


class Timeline:
    """Rows of one stack: their length, which a part alone does not tell."""

    def __init__(self, world: World) -> None:
        self._world, self._time = world, 0

    def gather(self, x: Tensor) -> Tensor:
        """Input of divided products."""
        return gather(x, self._time, self._world)

    def scatter(self, x: Tensor) -> Tensor:
        """This rank's part of the sum of divided products."""
        return scatter(x, self._world)

    def attach(self, stack: Stack) -> None:
        """Divide the rows of a stack before its blocks, and make them whole behind its last norm."""
        whole = stack.run_blocks

        def run_blocks(x: Tensor, context: Context) -> tuple[Tensor, Auxiliary]:
            self._time = x.shape[1]
            y, auxiliary = whole(split(x, self._world), context)
            return join(y, self._time, self._world), auxiliary

        stack.run_blocks = run_blocks

    def attach_further(self, further: MultiToken) -> None:
        """The same for each block of multi-token prediction: what it reads and what it gives are whole rows."""
        whole = further.step

        def step(ahead: int, states: Tensor, vectors: Tensor, context: Context) -> tuple[Tensor, Auxiliary]:
            self._time = states.shape[1]
            y, auxiliary = whole(ahead, split(states, self._world), split(vectors, self._world), context)
            return join(y, self._time, self._world), auxiliary

        further.step = step

    def wrap(self, part: nn.Module) -> None:
        """Give a part whole rows, and take its answer apart: on every rank it computes the same."""
        part.register_forward_pre_hook(self._enter)
        part.register_forward_hook(self._leave)

    def _enter(self, _part: nn.Module, arguments: Any) -> Any:
        return (join(arguments[0], self._time, self._world), *arguments[1:])

    def _leave(self, _part: nn.Module, _arguments: Any, answer: Any) -> Any:
        if isinstance(answer, tuple):
            return split(answer[0], self._world), *answer[1:]
        return split(answer, self._world)


def number_parts(modules: list[nn.Module], world: World) -> None:
    """Tell each dropout which part of the rows it sees, so that it drops what one process drops."""
    for module in modules:
        if isinstance(module, Dropout):
            module.part = world.axis_rank(AXIS)
