"""Is more training worth it? The expected gain of 10 % more tokens, from the validation losses of a run.

At a constant learning rate L(D) = E + B D^-b is fitted to the losses over D tokens (Kaplan et al. 2020, arXiv
2001.08361; Hoffmann et al. 2022, arXiv 2203.15556), by least squares in E and B for each b of a grid. The gain of 10 %
more tokens is B D^-b (1 - 1.1^-b); its interval comes from resampled residuals. While the schedule changes the rate the
loss changes for that reason, so nothing is said then: the verdict is that of the last constant part.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

Verdict = Literal["converged", "worth it", "undecided", "diverging", "overfitting", "unknown"]
Values = Float64[np.ndarray, " n"]

EXPONENTS = np.geomspace(0.05, 2.0, 32)
RESAMPLES = 200
MIN_POINTS = 8
SPAN = 8.0
"""Losses from D / SPAN tokens on are fitted: the first ones follow other laws."""
CONSTANT = 0.95
"""Share of its peak from which on the learning rate counts as constant."""
MORE = 1.1
RISEN = 0.03
"""Rise over the least loss, as a share of it, from which on a run diverges or overfits."""
NOISES = 3.0
"""The same in standard deviations of the noise: the larger of both counts."""


@dataclass(frozen=True)
class Convergence:
    """What a run's validation losses say of more tokens."""

    verdict: Verdict
    text: str
    tokens: int = 0
    """Up to which the losses were judged."""
    floor: float | None = None
    """E, in nats; None too where the losses show none: the fit's is below 0, which no loss in nats is."""
    gain: float | None = None
    """Expected fall of the loss with 10 % more tokens, in nats."""
    low: float | None = None
    high: float | None = None
    """Ends of its interval, 5 % and 95 %."""


@dataclass(frozen=True)
class Fit:
    """L(D) = floor + B D^-exponent.

    Losses that bend little fit best with a floor far away, or below 0. The gain is read off the curve where the losses
    are, so it holds all the same; the fit with the floor held at 0 bends more than they do and gives too small a gain.
    """

    floor: float
    exponent: float
    gain: float
    low: float
    high: float


def fit(tokens: Values, loss: Values) -> Fit:
    """The law of losses [n], and the gain of 10 % more than the last `tokens`, with its interval."""
    scaled = tokens / tokens[-1]
    samples = loss[:, None]
    floor, factor, exponent, fitted = _least_squares(scaled, samples)
    again = _least_squares(scaled, fitted + _resampled(loss - fitted[:, 0]))
    gains = again[1] * (1 - MORE ** -again[2])
    gain = float(factor[0] * (1 - MORE ** -exponent[0]))
    low, high = np.quantile(gains, [0.05, 0.95])
    return Fit(float(floor[0]), float(exponent[0]), gain, min(float(low), gain), max(float(high), gain))


def _resampled(residual: Values) -> Float64[np.ndarray, "n samples"]:
    """Samples of residuals as correlated from one to the next as these: an autoregression of order 1, steps redrawn.

    Neighbouring evaluations are of nearly the same weights. The correlation found is too small, by (1 + 3 r) / n for a
    mean (Kendall 1954) and more for a curve, for which twice that is added.
    """
    size = len(residual)
    r = float((residual[1:] * residual[:-1]).sum() / max(float((residual**2).sum()), 1e-300))
    r = min(r + 2 * (1 + 3 * r) / size, 0.95) if r > 0 else 0.0
    steps = residual[1:] - r * residual[:-1]
    steps = (steps - steps.mean()) * (size / max(size - 3, 1)) ** 0.5
    drawn = steps[np.random.default_rng(0).integers(0, size - 1, (size, RESAMPLES))]
    drawn[0] /= (1 - r * r) ** 0.5
    for n in range(1, size):
        drawn[n] += r * drawn[n - 1]
    return drawn


def _least_squares(x: Values, losses: Float64[np.ndarray, "n samples"]) -> tuple[Values, Values, Values, np.ndarray]:
    """(floor, factor, exponent) of each sample, and what they say [n, samples]; factors are not negative.

    The exponent is the vertex of the parabola through the errors at the best of the grid and its neighbours.
    """
    errors = np.stack([_linear(x, losses, np.full(losses.shape[1], each))[3] for each in EXPONENTS])
    best = errors.argmin(0).clip(1, len(EXPONENTS) - 2)
    before, here, after = (np.take_along_axis(errors, (best + shift)[None], 0)[0] for shift in (-1, 0, 1))
    bend = before - 2 * here + after
    shift = np.where(bend > 0, (before - after) / np.where(bend > 0, 2 * bend, 1.0), 0.0).clip(-1, 1)
    exponent = EXPONENTS[0] * (EXPONENTS[1] / EXPONENTS[0]) ** (best + shift)
    floor, factor, fitted, _ = _linear(x, losses, exponent)
    return floor, factor, exponent, fitted


def _linear(
    x: Values, losses: Float64[np.ndarray, "n samples"], exponent: Values
) -> tuple[Values, Values, Float64[np.ndarray, "n samples"], Values]:
    """(floor, factor, what they say, sum of squared errors) of each sample, for its exponent."""
    power = x[:, None] ** -exponent
    centre = power - power.mean(0)
    factor = np.maximum((centre * losses).sum(0) / (centre**2).sum(0), 0.0)
    floor = losses.mean(0) - factor * power.mean(0)
    fitted = floor + factor * power
    return floor, factor, fitted, ((losses - fitted) ** 2).sum(0)


def convergence(
    tokens: Int64[np.ndarray, " n"], loss: Values, rate: Values, training: Values | None = None, gain: float = 1e-3
) -> Convergence:
    """The verdict on validation losses.

    rate: learning rate at each evaluation; training: the training loss around each. gain: in nats; a run has converged
    when the upper end of the interval is below it.
    """
    fine = np.isfinite(loss)
    if not fine[-1:].all() or (~fine[-3:]).sum() >= 2:
        text = f"{(~fine[-3:]).sum()} of the {len(fine[-3:])} newest validation losses are not finite"
        return Convergence("diverging", text, int(tokens[-1]))
    tokens, loss, rate = tokens[fine], loss[fine], rate[fine]
    training = None if training is None else training[fine]
    if risen := _risen(loss, rate, training):
        verdict, least = risen
        return Convergence(verdict, f"the validation loss rose from {least:.4f} to {loss[-1]:.4f}", int(tokens[-1]))
    warm, last = constant_part(rate)
    if not last:
        why = f"it needs {MIN_POINTS} evaluations, and a quarter of all, at a constant learning rate"
        return Convergence("unknown", f"{why}: while the rate changes the loss does so for that reason")
    tokens, loss = tokens[:last], loss[:last]
    first = max(min(int(np.searchsorted(tokens, tokens[-1] / SPAN)), last - MIN_POINTS), warm)
    law = fit(tokens[first:].astype(float), loss[first:])
    verdict: Verdict = "converged" if law.high < gain else "worth it" if law.low > gain else "undecided"
    where = "" if last == len(rate) else f" at {tokens[-1]:,} tokens, before the rate changed"
    floor = law.floor if law.floor >= 0 else None
    text = f"10 % more tokens{where} lower the loss by {law.gain:.4f} nats ({law.low:.4f} to {law.high:.4f}); "
    text += "the losses show no floor yet" if floor is None else f"{floor:.3f} is the floor of the fit"
    return Convergence(verdict, text, int(tokens[-1]), floor, law.gain, law.low, law.high)


def constant_part(rate: Values) -> tuple[int, int]:
    """[first, end) of the last evaluations at one rate, within 1 - CONSTANT, that are a quarter of all; else (0, 0).

    The slow parts of a cosine, the warm-up and the peaks of restarts are shorter.
    """
    end = len(rate)
    while end:
        least, most = (each.accumulate(rate[:end][::-1]) for each in (np.minimum, np.maximum))
        size = int((least >= CONSTANT * most).sum())
        if size >= max(MIN_POINTS, len(rate) / 4):
            return end - size, end
        end -= max(size, 1)
    return 0, 0


def _risen(
    loss: Values, rate: Values, training: Values | None
) -> tuple[Literal["diverging", "overfitting"], float] | None:
    """Whether the three newest losses stand above the least median of three by more than RISEN and their noise.

    Also that median. Losses at a lower rate than now are no measure: at a restart or a re-warming the loss rises for
    that reason.
    """
    alike = np.flatnonzero(rate >= CONSTANT * rate[-3:].min()) if len(rate) else np.empty(0, np.int64)
    if len(alike) < 5:
        return None
    medians = np.median(np.lib.stride_tricks.sliding_window_view(loss[alike], 3), axis=1)
    best = int(medians[:-2].argmin())  # one that has at most one of the newest three
    least = float(medians[best])
    if not (loss[-3:] > least + max(RISEN * abs(least), NOISES * _noise(loss))).all():
        return None
    fell = training is not None and float(training[-1]) < float(training[alike[best + 1]])
    return "overfitting" if fell else "diverging", least


def _noise(loss: Values) -> float:
    """Standard deviation of independent normal noise on a smooth curve, by the median size of second differences."""
    return float(np.median(np.abs(np.diff(loss, 2)))) / (0.6745 * 6**0.5)
