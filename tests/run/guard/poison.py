"""Samples of training data that spoil the gradient of every batch they are in, wherever and however often they come."""

from collections.abc import Callable, Container
from typing import Any

from hornbook.data.batch import GlobalBatch
from hornbook.run.checkpoints.state import State

Poison = tuple[Container[int], float]
"""Positions of samples, and what the gradients are multiplied by."""


def spoiled(original: Callable[..., Any], *poisons: Poison) -> Callable[..., Any]:
    """`State.forward_backward` with poisoned samples."""

    def compute(state: State, batch: GlobalBatch) -> Any:
        losses = original(state, batch)
        for positions, factor in poisons:
            if any(each in positions for each in range(batch.first_sample, batch.first_sample + batch.num_samples)):
                for parameter in state.engine.named_parameters.values():
                    assert parameter.grad is not None
                    parameter.grad.mul_(factor)
        return losses

    return compute


def poison(*poisons: Poison) -> Callable[[], None]:
    """Poison this process; returns what undoes it."""
    original = State.forward_backward
    State.forward_backward = spoiled(original, *poisons)

    def undo() -> None:
        State.forward_backward = original

    return undo
