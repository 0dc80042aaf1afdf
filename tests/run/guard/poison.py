"""Samples of training data that spoil the gradient of every batch they are in, wherever they come."""

from collections.abc import Callable, Container
from typing import Any

import hornbook.run.train as loop

Poison = tuple[Container[int], float]
"""Positions of samples, and what the gradients are multiplied by."""


def spoiled(original: Callable[..., Any], *poisons: Poison) -> Callable[..., Any]:
    """`compute_gradients` with poisoned samples."""

    def compute(job: Any, state: Any, length: Any) -> Any:
        batch, losses, waited = original(job, state, length)
        for positions, factor in poisons:
            if any(each in positions for each in range(batch.first_sample, batch.first_sample + batch.num_samples)):
                for parameter in state.engine.named_parameters.values():
                    parameter.grad.mul_(factor)
        return batch, losses, waited

    return compute


def poison(*poisons: Poison) -> Callable[[], None]:
    """Poison this process; returns what undoes it."""
    original = loop.compute_gradients
    loop.compute_gradients = spoiled(original, *poisons)

    def undo() -> None:
        loop.compute_gradients = original

    return undo
