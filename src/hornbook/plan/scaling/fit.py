"""Approach 3 of Hoffmann et al. 2022 (arXiv 2203.15556, equation 3): a law of the sum fitted to runs.

The objective is the SUM over runs of the Huber loss of log(L) - LSE(a - alpha log N, b - beta log D, e). It was once
averaged, and an optimizer with absolute tolerances then stopped far from its minimum (Besiroglu et al. 2024, arXiv
2404.10102); here every tolerance is relative, so that a factor on the objective changes nothing. E, A and B enter a
least-squares problem linearly, so starts come from a grid over (alpha, beta) alone, at each of which the best E, A and
B are solved for (variable projection, arXiv 2603.22339); the best are refined by Levenberg-Marquardt steps with the
analytic Jacobian, all starts and all bootstrap samples at once.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float64

from hornbook.plan.scaling.laws import Parameters, SumLaw

DELTA = 1e-3
"""Where the Huber loss of a log-loss turns from a square to a line."""
EXPONENTS = np.geomspace(0.05, 2.0, 28)
"""Of the grid, for alpha and for beta."""
EXPONENT_BOUNDS = (0.01, 5.0)
LEAST_TERM = 1e-6
"""Of E, and of the other terms at the centre of the runs, over the least loss: smaller ones are nothing."""
STARTS = 12
"""Best points of the grid that are refined."""
STEPS = 600
"""Of refinement at most."""
TOLERANCE = 1e-13
"""Fall of the objective, relative to itself, below which `PATIENCE` steps in a row end the refinement."""
PATIENCE = 8

Logs = Float64[np.ndarray, " n"]


@dataclass(frozen=True)
class Runs:
    """Finished runs: parameters, tokens and loss of each, and how often it counts."""

    parameters: Float64[np.ndarray, " n"]
    tokens: Float64[np.ndarray, " n"]
    loss: Float64[np.ndarray, " n"]
    """Nats per token."""

    def __len__(self) -> int:
        return len(self.loss)


@dataclass(frozen=True)
class Solutions:
    """A law for each start or sample: theta [s, 5] is log (E, A, B, alpha, beta) of centred sizes; objective [s]."""

    theta: Float64[np.ndarray, "s 5"]
    objective: Float64[np.ndarray, " s"]

    @property
    def best(self) -> int:
        """Number of the one with the least objective."""
        return int(self.objective.argmin())


class Problem:
    """The objective over runs, its gradient, and the search for its minimum."""

    def __init__(self, runs: Runs, delta: float = DELTA) -> None:
        self.size, self.data, self.loss = np.log(runs.parameters), np.log(runs.tokens), np.log(runs.loss)
        self.centre = float(self.size.mean()), float(self.data.mean())
        self.x, self.y = self.size - self.centre[0], self.data - self.centre[1]
        self.delta = delta
        low, high = np.log(EXPONENT_BOUNDS)
        least = float(self.loss.min()) + np.log(LEAST_TERM)
        self.low, self.high = np.array([least] * 3 + [low] * 2), np.array([np.inf] * 3 + [high] * 2)

    def solve(self, weights: Float64[np.ndarray, "s n"]) -> Solutions:
        """The law of least objective for each row of weights, from several starts."""
        starts = np.concatenate([self.starts(row) for row in weights])
        found = self.refine(starts, np.repeat(weights, len(starts) // len(weights), 0))
        shape = len(weights), -1
        objective = found.objective.reshape(shape)
        rows, best = np.arange(len(weights)), objective.argmin(1)
        return Solutions(found.theta.reshape(*shape, 5)[rows, best], objective[rows, best])

    def starts(self, weights: Logs, keep: int = STARTS) -> Float64[np.ndarray, "keep 5"]:
        """The best points of the grid over (alpha, beta), each with its best E, A and B (not negative)."""
        alpha, beta = (each.ravel() for each in np.meshgrid(EXPONENTS, EXPONENTS, indexing="ij"))
        scale = np.exp(-self.loss)  # relative errors are those of the logarithm, to first order
        columns = np.stack(
            [
                np.broadcast_to(scale, (len(alpha), len(scale))),
                np.exp(-alpha[:, None] * self.x) * scale,
                np.exp(-beta[:, None] * self.y) * scale,
            ],
            -1,
        )
        factors, error = _not_negative(columns, weights)
        order = np.argsort(error, kind="stable")[:keep]
        with np.errstate(divide="ignore"):
            found = np.log(np.column_stack([factors[order], alpha[order], beta[order]]))
        return np.clip(found, self.low, self.high)

    def objective(
        self, theta: Float64[np.ndarray, "s 5"], weights: Float64[np.ndarray, "s n"]
    ) -> tuple[Float64[np.ndarray, " s"], Float64[np.ndarray, "s n"], Float64[np.ndarray, "s n 5"]]:
        """(sum of Huber losses, residuals, their derivatives by theta)."""
        e, a, b, alpha, beta = theta.T[:, :, None]
        alpha, beta = np.exp(alpha), np.exp(beta)
        terms = np.stack([np.broadcast_to(e, (len(theta), len(self.x))), a - alpha * self.x, b - beta * self.y], -1)
        top = terms.max(-1)
        shares = np.exp(terms - top[..., None])
        total = shares.sum(-1)
        residual = top + np.log(total) - self.loss
        shares /= total[..., None]
        by_alpha, by_beta = -alpha * shares[..., 1] * self.x, -beta * shares[..., 2] * self.y
        slope = np.concatenate([shares, by_alpha[..., None], by_beta[..., None]], -1)
        size = np.abs(residual)
        huber = np.where(size <= self.delta, residual**2 / 2, self.delta * (size - self.delta / 2))
        return (weights * huber).sum(-1), residual, slope

    def refine(
        self, theta: Float64[np.ndarray, "s 5"], weights: Float64[np.ndarray, "s n"], tolerance: float = TOLERANCE
    ) -> Solutions:
        """Minima from each start, by Levenberg-Marquardt steps on squares that weigh as the Huber loss does."""
        theta, damping = theta.copy(), np.full(len(theta), 1e-3)
        value, residual, slope = self.objective(theta, weights)
        idle = np.zeros(len(theta), dtype=int)
        for _ in range(STEPS):
            active = np.flatnonzero(idle < PATIENCE)
            if not len(active):
                break
            step = self._step(weights[active], residual[active], slope[active], damping[active])
            tried = np.clip(theta[active] + step, self.low, self.high)
            new, new_residual, new_slope = self.objective(tried, weights[active])
            better = new < value[active]
            fell = np.where(better, (value[active] - new) / np.maximum(value[active], 1e-300), 0.0)
            idle[active] = np.where(fell > tolerance, 0, idle[active] + 1)
            damping[active] = np.clip(np.where(better, damping[active] / 5, damping[active] * 8), 1e-12, 1e12)
            here = active[better]
            theta[here], value[here] = tried[better], new[better]
            residual[here], slope[here] = new_residual[better], new_slope[better]
        return Solutions(theta, value)

    def _step(
        self,
        weights: Float64[np.ndarray, "s n"],
        residual: Float64[np.ndarray, "s n"],
        slope: Float64[np.ndarray, "s n 5"],
        damping: Float64[np.ndarray, " s"],
    ) -> Float64[np.ndarray, "s 5"]:
        weights = weights * np.minimum(1.0, self.delta / np.maximum(np.abs(residual), 1e-300))
        weighted = slope * weights[..., None]
        gradient = (weighted * residual[..., None]).sum(1)
        curvature = weighted.transpose(0, 2, 1) @ slope
        diagonal = np.einsum("sii->si", curvature)
        # A share of the largest keeps the matrix regular where a term has vanished. All of it scales with the weights.
        floor = 1e-12 * diagonal.max(1, keepdims=True) + 1e-300
        curvature[:, range(5), range(5)] += damping[:, None] * np.maximum(diagonal, floor) + floor
        return np.clip(-np.linalg.solve(curvature, gradient[..., None])[..., 0], -2.0, 2.0)

    def law(self, theta: Logs, name: str, parameters: Parameters, source: str) -> SumLaw:
        """The law of centred logarithms, as one of N and D."""
        e, a, b = (float(each) for each in theta[:3])
        alpha, beta = (float(each) for each in np.exp(theta[3:]))
        return SumLaw(
            name=name,
            parameters=parameters,
            source=source,
            E=float(np.exp(e)),
            A=float(np.exp(a + alpha * self.centre[0])),
            B=float(np.exp(b + beta * self.centre[1])),
            alpha=alpha,
            beta=beta,
        )


def _not_negative(
    columns: Float64[np.ndarray, "g n 3"], weights: Logs
) -> tuple[Float64[np.ndarray, "g 3"], Float64[np.ndarray, " g"]]:
    """(factors >= 0 of least weighted squares of columns @ factors - 1, their sum), over all choices of zeros."""
    weighted = columns * weights[:, None]
    matrix, right, whole = weighted.transpose(0, 2, 1) @ columns, weighted.sum(1), float(weights.sum())
    best, least = np.zeros((len(columns), 3)), np.full(len(columns), np.inf)
    for count in (1, 2, 3):
        for kept in combinations(range(3), count):
            part = matrix[:, kept][:, :, kept]
            size = np.sqrt(np.einsum("gii->gi", part))  # columns of one length: the solution is as exact as it can be
            scaled = part / size[:, :, None] / size[:, None, :] + 1e-14 * np.eye(count)
            found = np.linalg.solve(scaled, (right[:, kept] / size)[..., None])[..., 0] / size
            error = whole - (found * right[:, kept]).sum(1)
            good = (found > 0).all(1) & (error < least)
            best[good], least[good] = 0.0, error[good]
            rows = np.flatnonzero(good)
            best[rows[:, None], kept] = found[good]
    return best, least


def fit_law(
    runs: Runs, *, name: str, parameters: Parameters, source: str, delta: float = DELTA
) -> tuple[SumLaw, float]:
    """(the law of least objective, the objective) of runs; numbers only, `ladder.py` says whether they are enough."""
    problem = Problem(runs, delta)
    found = problem.solve(np.ones((1, len(runs))))
    return problem.law(found.theta[0], name, parameters, source), float(found.objective[0])


def bootstrap(runs: Runs, samples: int, *, parameters: Parameters, seed: int = 0, delta: float = DELTA) -> list[SumLaw]:
    """Laws of runs drawn with replacement. A draw in which too few sizes or lengths are left is drawn again."""
    problem, draw = Problem(runs, delta), np.random.default_rng(seed)
    counts = np.zeros((samples, len(runs)))
    for row in counts:
        while (np.unique(runs.parameters[row > 0]).size < 3) or (np.unique(runs.tokens[row > 0]).size < 3):
            row[:] = np.bincount(draw.integers(0, len(runs), len(runs)), minlength=len(runs))
    whole = problem.solve(np.ones((1, len(runs)))).theta
    starts = np.concatenate([np.concatenate([whole, problem.starts(row, 3)]) for row in counts])
    found = problem.refine(starts, np.repeat(counts, 4, 0), tolerance=1e-8)  # far below the spread of samples
    objective, theta = found.objective.reshape(samples, 4), found.theta.reshape(samples, 4, 5)
    best = theta[np.arange(samples), objective.argmin(1)]
    return [problem.law(each, f"sample {number}", parameters, "") for number, each in enumerate(best)]
