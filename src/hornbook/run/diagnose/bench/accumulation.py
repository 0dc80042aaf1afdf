"""Gradient accumulation, shown in figures: one big batch against the same rows in ragged microbatches.

The engine divides by the weight of the whole global batch before each backward, so the gradients agree up to rounding.
The mean of the microbatches' own means, which training code often takes, is another number wherever microbatches have
unequal numbers of targets.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hornbook.data.batch import Batch, GlobalBatch
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import distributed
from hornbook.run.checkpoints.state import State
from hornbook.run.job.run_inputs import Inputs
from hornbook.run.loop.training_loop import build_state

LEAST_ROWS = 4

Gradients = dict[str, Tensor]


def compare_accumulation(inputs: Inputs) -> dict[str, Any]:
    """Loss and relative distance of the gradients (L2 over all parameters) from those of one big batch.

    `microbatches`: rows and targets of the ragged microbatches; `right`: weighted by targets, as the engine does;
    `mean_of_means`: each microbatch's mean, averaged.
    """
    recipe = inputs.recipe
    rows = max(recipe.train.micro_rows, LEAST_ROWS)
    with distributed(ParallelConfig(), recipe.train) as world:
        state = build_state(inputs, ParallelConfig(), world)
        state.fill(inputs.initial_values())
        big = _batch(inputs, 0, rows)
        ragged = [_batch(inputs, first, end) for first, end in ((0, 1), (1, 3), (3, rows))]
        parts = [batch for each in ragged for batch in each.batches]
        weight = sum(each.total_weight for each in ragged)
        whole, loss = _gradients(state, big.batches, big.total_weight)
        right, right_loss = _gradients(state, parts, weight)
        means = [_gradients(state, each.batches, each.total_weight) for each in ragged]
        averaged = {name: torch.stack([found[name] for found, _ in means]).mean(0) for name in whole}
        return {
            "precision": recipe.train.precision,
            "rows": rows,
            "targets": big.total_weight,
            "microbatches": [{"rows": each.num_samples, "targets": each.total_weight} for each in ragged],
            "loss": loss,
            "right": {"loss": right_loss, "distance": _distance(right, whole)},
            "mean_of_means": {
                "loss": sum(found for _, found in means) / len(means),
                "distance": _distance(averaged, whole),
            },
        }


def _batch(inputs: Inputs, first: int, end: int) -> GlobalBatch:
    """Samples first to end - 1 as one microbatch."""
    return inputs.loader.index.batch(np.arange(first, end, dtype=np.int64), end - first)


def _gradients(state: State, batches: Sequence[Batch], weight: float) -> tuple[Gradients, float]:
    """Gradients of the mean over `weight` targets, and that mean."""
    engine = state.engine
    engine.zero_gradients()
    sums = engine.forward_backward(batches, weight, key=(state.seed, 0))
    found = {name: each.grad.clone() for name, each in engine.named_parameters.items() if each.grad is not None}
    return found, float(sums["loss"]) / max(weight, 1.0)


def _distance(found: Gradients, reference: Gradients) -> float:
    """|found - reference| / |reference| over all parameters, in float64."""
    apart = sum(float((found[name].double() - each.double()).square().sum()) for name, each in reference.items())
    whole = sum(float(each.double().square().sum()) for each in reference.values())
    return (apart / whole) ** 0.5 if whole else 0.0
