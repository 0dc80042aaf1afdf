"""Synthetic series of a run, and what is wrong in them: a healthy base, changed by each test."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hornbook.run.doctor.curves import Curves, Evaluated, Facts, Layers

STEPS, BATCH = 600, 1000
MEASURED = 12
BLOCKS = ("blocks.0", "blocks.1", "blocks.2")


def healthy(**changes: Any) -> Curves:
    """A synthetic run: a power law with noise, gradients that settle, a warm-up and a constant rate."""
    noise = np.random.default_rng(3)
    step = np.arange(1, STEPS + 1)
    loss = 2.0 + 6.0 * step**-0.3 + noise.normal(0, 0.02, STEPS)
    evaluated = np.arange(50, STEPS + 1, 50)
    base = Curves(
        step=step,
        tokens=step * BATCH,
        loss=loss,
        gradient_norm=0.5 + 2 / step**0.5 + np.abs(noise.normal(0, 0.05, STEPS)),
        lr=rate(step),
        seconds=np.full(STEPS, 0.1),
        data_seconds=np.full(STEPS, 0.001),
        skipped=np.zeros(STEPS, dtype=bool),
        layers=layers(),
        evaluated=Evaluated(evaluated, evaluated * BATCH, 2.05 + 6.0 * evaluated**-0.3),
        facts=Facts(peak_rate=1e-3, planned_tokens=STEPS * BATCH, unigram_loss=6.0),
    )
    return replace(base, **changes)


def rate(step: np.ndarray) -> np.ndarray:
    """Learning rate at each step: a warm-up of 20."""
    return 1e-3 * np.minimum(step / 20, 1.0)


def layers(**columns: Callable[[np.ndarray], np.ndarray]) -> Layers:
    """Statistics of a synthetic run; `columns` give [measured, names] from the steps [measured, 1]."""
    step = np.arange(1, MEASURED + 1) * 50
    names = ("embedding", *BLOCKS, "norm")
    ones = np.ones((MEASURED, len(names)))
    found = {
        "gradient_norm": 0.3 * ones,
        "weight_norm": 10 * ones,
        "update_ratio": 1e-3 * ones,
        "activation_rms": ones[:, :3],
        "dead_units": 0.05 * ones[:, :3],
        "idle_experts": 0 * ones[:, :3],
        "max_logit": (4 + np.log(step))[:, None] * ones[:, :3],
    }
    log_z, scale, lr = (columns.pop(name, None) for name in ("log_z", "loss_scale", "lr"))
    for name, column in columns.items():
        found[name] = column(step[:, None]) * np.ones_like(found[name])
    return Layers(
        step,
        step * BATCH,
        names,
        BLOCKS,
        found,
        rate(step) if lr is None else lr(step),
        np.full(MEASURED, 9.0) if log_z is None else log_z(step),
        np.full(MEASURED, np.nan) if scale is None else scale(step),
    )
