"""Norms of queries and keys that a fork adds to a trained model (`model.attention.qk_norm`).

Marin's 32B model was saved so when spikes did not end: training went on from its weights with QK-norm added. A norm
with gains of 1 would set all attention logits to another size at once; so each new norm begins with the size that its
queries or keys have on the next rows of data, and attention looks where it looked.
"""

import re
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from hornbook.parallel.world import AXES
from hornbook.run.checkpoints.state import State

NORM = re.compile(r"\.(query|key)_norm\.weight$")


def fit_gains(state: State, new: frozenset[str]) -> dict[str, float]:
    """Set the gains of the norms named, one number each, and return them. Every rank calls it.

    A norm is fitted on what those before it give once they are fitted: one pass over the next microbatch suffices.
    """
    squares: dict[str, float] = {}
    with ExitStack() as stack, torch.compiler.set_stance("force_eager"):
        for name, module in state.engine.model.named_modules():
            if f"{name}.weight" in new:
                hook = module.register_forward_hook(_Fit(squares, f"{name}.weight"))
                stack.callback(hook.remove)
        state.probe(state.micro_batch)
    found = state.engine.world.all_gather_values(squares, AXES)
    gains = dict[str, float]()
    for name in sorted(new):
        seen = [each[name] for each in found if name in each]
        gains[name] = (sum(seen) / len(seen)) ** 0.5
        if name in state.engine.shards:
            state.engine.shards[name].tensor.detach().fill_(gains[name])
    return gains


class _Fit:
    """A hook that measures what a norm is given, and has its output keep that size."""

    def __init__(self, squares: dict[str, float], name: str) -> None:
        self._squares, self._name = squares, name

    def __call__(self, _: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        square = self._squares.setdefault(self._name, float(given[0].detach().float().square().mean()))
        return output * square**0.5
