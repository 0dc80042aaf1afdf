"""Approaches 1 and 2 of Hoffmann et al. 2022 (arXiv 2203.15556, sections 3.1 and 3.2): the exponent without a law.

Both give N = k C^a. Approach 1 takes the envelope of losses over compute; approach 2 the vertex of a parabola in log N
at each compute. The parabola is only the second-order part of the loss: with alpha != beta its vertex is off by a
factor that depends on the exponents and on the width of the grid alone (Czech et al. 2026, arXiv 2603.22339). It is the
same at each compute: the exponent is right and every size is wrong. `vertex_shift` is that factor for a law.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from hornbook.plan.scaling.fit import Runs
from hornbook.plan.scaling.laws import OPERATIONS

SAME_COMPUTE = 1.1
"""Runs whose compute differs by less than this factor are of one isoFLOP curve."""
LEAST_POINTS = 4
"""Of an isoFLOP curve: a parabola goes through any three."""


@dataclass(frozen=True)
class Frontier:
    """N = factor C^exponent, and the (compute, N) that it goes through."""

    factor: float
    exponent: float
    points: tuple[tuple[float, float], ...]

    def best_size(self, compute: float) -> float:
        """N for a budget of `compute` operations."""
        return self.factor * compute**self.exponent


def envelope(curves: Sequence[Runs], bins: int = 1500) -> Frontier | None:
    """Approach 1: the run of least loss at each compute of a grid (losses between points along log C).

    curves: the losses of each run as it went, of one size each. None where fewer than two sizes are ever the best.
    """
    logs = [np.log(OPERATIONS * each.parameters * each.tokens) for each in curves]
    if not logs or min(map(len, logs)) == 0:
        return None
    grid = np.linspace(min(each[0] for each in logs), max(each[-1] for each in logs), bins)
    losses = np.stack(
        [np.interp(grid, log, each.loss, left=np.inf, right=np.inf) for log, each in zip(logs, curves, strict=True)]
    )
    best, covered = losses.argmin(0), np.isfinite(losses).any(0)
    # At both ends a run is the best because no smaller or larger one was trained.
    inner = np.flatnonzero(covered & (best != best[0]) & (best != best[-1]))
    sizes = np.array([float(each.parameters[0]) for each in curves])[best[inner]]
    return _frontier(np.exp(grid[inner]), sizes)


def parabolas(runs: Runs) -> Frontier | None:
    """Approach 2: the vertex of a parabola in log N through the losses at each compute.

    None where fewer than two compute budgets have runs of `LEAST_POINTS` sizes around a minimum.
    """
    compute = OPERATIONS * runs.parameters * runs.tokens
    found = []
    for group in _isoflop(compute):
        log, loss = np.log(runs.parameters[group]), runs.loss[group]
        if np.unique(log).size < LEAST_POINTS:
            continue
        vertex = parabola_vertex(log, loss)
        if vertex is not None and log.min() < vertex < log.max():
            found.append((float(np.exp(np.log(compute[group]).mean())), math.exp(vertex)))
    if not found:
        return None
    budgets, sizes = (np.array(each) for each in zip(*found, strict=True))
    return _frontier(budgets, sizes)


def parabola_vertex(x: Float64[np.ndarray, " n"], y: Float64[np.ndarray, " n"]) -> float | None:
    """Where the parabola of least squares through points is least; None where it has no minimum."""
    centre = float(x.mean())
    bend, slope, _ = (float(each) for each in np.polyfit(x - centre, y, 2))
    return centre - slope / (2 * bend) if bend > 0 else None


def vertex_shift(alpha: float, beta: float, width: float, points: int) -> float:
    """log(N of the parabola / N of least loss) on an even grid of `points` sizes, `width` times around the least.

    At a fixed compute, with w = log(N / N*), L - E is proportional to beta exp(-alpha w) + alpha exp(beta w). On a grid
    symmetric around 0 the coefficients of a parabola are sums over it alone: the slope is sum(w L) / sum(w^2), the bend
    sum((w^2 - mean w^2) L) / sum((w^2 - mean w^2)^2).
    """
    w = np.linspace(-math.log(width), math.log(width), points)
    loss, even = beta * np.exp(-alpha * w) + alpha * np.exp(beta * w), w**2 - (w**2).mean()
    return float(-(w @ loss) / (w @ w) / (2 * (even @ loss) / (even @ even)))


def _isoflop(compute: Float64[np.ndarray, " n"]) -> list[np.ndarray]:
    """Places of the runs of each compute budget, the smallest first."""
    order = np.argsort(compute, kind="stable")
    cuts = np.flatnonzero(np.diff(np.log(compute[order])) > math.log(SAME_COMPUTE)) + 1
    return np.split(order, cuts)


def _frontier(compute: Float64[np.ndarray, " n"], sizes: Float64[np.ndarray, " n"]) -> Frontier | None:
    if np.unique(sizes).size < 2 or np.unique(compute).size < 2:
        return None
    exponent, factor = np.polyfit(np.log(compute), np.log(sizes), 1)
    points = tuple(zip(compute.tolist(), sizes.tolist(), strict=True))
    return Frontier(float(np.exp(factor)), float(exponent), points)
