"""How fast batches are made, with nothing else to do, beside what the step of the recipe needs."""

import statistics
import time
from typing import Any

from hornbook.parallel.device import choose_device
from hornbook.run.inputs import Inputs, open_loader

LEAST_BATCHES = 5


def measure_loader(inputs: Inputs, seconds: float) -> dict[str, Any]:
    """Tokens/s of making batches one after the other in one thread, as the loop's own thread does ahead of a step.

    The first batch is apart: it maps shards and compares their checksums. A batch is rank 0's part of the recipe's.
    """
    recipe = inputs.recipe
    path = recipe.data.path
    assert path is not None
    loader = open_loader(recipe, path, prefetch=False)
    rows, ranks = max(recipe.train.batch_tokens // recipe.train.sequence, 1), recipe.parallel.world
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < LEAST_BATCHES + 1 or time.perf_counter() < until:
        begun = time.perf_counter()
        loader.take(rows, 0, ranks)
        times.append(time.perf_counter() - begun)
    quarters = statistics.quantiles(times[1:])
    median, tokens = statistics.median(times[1:]), rows * recipe.train.sequence
    return {
        "device": str(choose_device(recipe.train.device)),
        "batch_tokens": tokens,
        "batches": len(times) - 1,
        "first_seconds": times[0],
        "seconds": median,
        "spread": (quarters[2] - quarters[0]) / median / 2,
        "loader_tokens_per_second": tokens / median,
    }
