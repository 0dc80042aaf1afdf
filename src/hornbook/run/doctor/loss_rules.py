"""Rules over the loss of a run: plateau, saddle, oscillation, high rate, overfitting, nothing learned."""

import numpy as np

from hornbook.run.doctor.curves import MIN_STEPS, WINDOW, Curves, settled
from hornbook.run.doctor.fits import Values, robust_deviation, slope
from hornbook.run.guard.settings import ABOVE_FIRST, EXCESS, HARM, LEAST_HARM


def _stall(curves: Curves) -> tuple[float, float] | None:
    """(share of its usual size that the gradient norm has, fall of the loss) where the loss has stopped falling."""
    part = settled(curves)
    loss, lr, norms = curves.loss[part], curves.lr[part], curves.gradient_norm[part]
    fine = np.isfinite(loss) & np.isfinite(norms)
    loss, lr, norms = loss[fine], lr[fine], norms[fine]
    if len(loss) < 3 * MIN_STEPS:
        return None
    third = len(loss) // 3
    peak = max(curves.facts.peak_rate, float(lr.max()))
    if float(np.median(lr[-third:])) < 0.5 * peak:
        return None  # the schedule has lowered the rate: that the loss settles is what it is for
    rise, error = slope(loss[-third:])
    fall = -rise * third
    noise = max(3 * error * third, 0.003 * abs(float(np.median(loss))))
    if abs(fall) > noise:
        return None
    return float(np.median(norms[-third:]) / max(np.median(norms[: len(norms) // 3]), 1e-30)), fall


def plateau(curves: Curves) -> str | None:
    """No fall of the loss over a third of the run, at a high rate, with gradients of the usual size."""
    stall = _stall(curves)
    if stall is None or stall[0] < 0.1:
        return None
    return f"over the last third of the steps the loss fell by {stall[1]:.4f}, with the learning rate near its peak"


def saddle(curves: Curves) -> str | None:
    """No fall of the loss over a third of the run, at a high rate, with gradients a tenth of their early size."""
    stall = _stall(curves)
    if stall is None or stall[0] >= 0.1:
        return None
    return f"over the last third the loss fell by {stall[1]:.4f}; the gradient norm is {stall[0]:.1g} of its early size"


def oscillation(curves: Curves) -> str | None:
    """The loss of neighbouring steps alternates, or waves of it are many times as high as its noise."""
    part = settled(curves)
    loss = curves.loss[part][-512:]
    loss = loss[np.isfinite(loss)]
    if len(loss) < 2 * MIN_STEPS:
        return None
    level = float(np.median(loss))
    differences = np.diff(loss)
    residual = loss[8:-7] - np.convolve(loss, np.full(16, 1 / 16), "valid")
    size = robust_deviation(residual)
    turn = float((residual[1:] * residual[:-1]).mean() / max((residual**2).mean(), 1e-30))
    if turn < -0.5 and size > 0.005 * level:
        return f"of {len(loss):,} steps each loss lies on the other side of the trend, by {size:.3g} of {level:.3g}"
    smooth = _running_median(loss, 9)
    noise = robust_deviation(differences) / 2**0.5
    rises, falls = _swings(smooth, max(4 * noise / 3, 0.03 * level))
    progress = float(np.median(loss[: len(loss) // 4]) - np.median(loss[-len(loss) // 4 :]))
    if rises >= 3 and progress < 0.02 * level:
        return f"the loss rose {rises} and fell {falls} times by over 3 % in {len(loss):,} steps, without progress"
    return None


def _running_median(values: Values, width: int) -> Values:
    padded = np.pad(values, width // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)


def _swings(values: Values, height: float) -> tuple[int, int]:
    """How many times a curve rises, and falls, by `height` from its last turn."""
    rises = falls = 0
    low = high = float(values[0])
    for value in map(float, values):
        low, high = min(low, value), max(high, value)
        if value - low > height:
            rises, low, high = rises + 1, value, value
        elif high - value > height:
            falls, low, high = falls + 1, value, value
    return rises, falls


def high_rate(curves: Curves) -> str | None:
    """Many losses a quarter above the first one, or far above the ones before the rate was raised."""
    fine = np.isfinite(curves.loss)
    loss, lr, step = curves.loss[fine], curves.lr[fine], curves.step[fine]
    if len(loss) < 2 * MIN_STEPS:
        return None
    first, smooth = float(loss[0]), _running_median(loss, 9)
    if (smooth / (ABOVE_FIRST * first) - 1).clip(0, 1).sum() > EXCESS:
        return f"the loss rose from {first:.3f} to {smooth.max():.3f} by step {step[int(smooth.argmax())]:,}"
    raised = np.flatnonzero(lr[1:] > 1.5 * lr[:-1]) + 1
    for at in raised[(raised >= WINDOW) & (raised + 64 <= len(loss))]:
        before, after = float(np.median(loss[at - 16 : at])), float(np.median(loss[at + 32 : at + 64]))
        if after > before + max(HARM * (first - before), LEAST_HARM * before):
            rates = f"from {lr[at - 1]:.2g} to {lr[at]:.2g}"
            return f"the rate rose {rates} behind step {step[at - 1]:,}, and the loss from {before:.3f} to {after:.3f}"
    return None


def overfitting(curves: Curves) -> str | None:
    """Validation loss above its least by 1 % and more than its noise, at three evaluations, while training falls."""
    found = curves.evaluated
    if len(found.loss) < 4:
        return None
    best = int(np.nanargmin(found.loss))
    after = found.loss[best + 1 :]
    noise = robust_deviation(np.diff(found.loss[: best + 2])) if best > 2 else 0.0
    limit = float(found.loss[best]) + max(0.01 * float(found.loss[best]), noise)
    if len(after) < 3 or not (after[-3:] > limit).all():
        return None
    then, now = (_loss_before(curves, step) for step in (found.step[best], found.step[-1]))
    if not now < then:
        return None
    return (
        f"validation loss {found.loss[best]:.4f} at step {found.step[best]:,} and {found.loss[-1]:.4f} at step "
        f"{found.step[-1]:,}, training loss {then:.4f} and {now:.4f}"
    )


def _loss_before(curves: Curves, step: int) -> float:
    there = curves.loss[(curves.step <= step) & np.isfinite(curves.loss)]
    return float(np.median(there[-WINDOW:])) if len(there) else float("nan")


def above_unigram(curves: Curves) -> str | None:
    """The median loss never below the unigram entropy, though steps enough were made."""
    entropy, loss = curves.facts.unigram_loss, curves.loss[np.isfinite(curves.loss)]
    if entropy is None or len(loss) < 200:
        return None
    least = float(_running_median(loss, 17).min())
    return f"the lowest loss is {least:.3f} nats, single tokens have {entropy:.3f}" if least > entropy else None
