"""Small fits to recorded series: medians, slopes, power laws with the time at which they reach a limit."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

Values = Float64[np.ndarray, " n"]
NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median distance from the median."""


def robust_deviation(values: Values) -> float:
    """Robust standard deviation."""
    return NORMAL * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def slope(values: Values) -> tuple[float, float]:
    """(rise per value, its standard error) of the line through medians of 16 blocks, which outliers move little."""
    blocks = [float(np.median(each)) for each in np.array_split(values, min(16, len(values)))]
    x = np.arange(len(blocks), dtype=float)
    x -= x.mean()
    y = np.array(blocks) - np.mean(blocks)
    rise = float((x * y).sum() / (x * x).sum())
    residual = y - rise * x
    error = float(np.sqrt((residual**2).sum() / max(len(x) - 2, 1) / (x * x).sum()))
    per_value = len(blocks) / len(values)
    return rise * per_value, error * per_value


@dataclass(frozen=True)
class PowerLaw:
    """value = factor * x^exponent."""

    factor: float
    exponent: float
    error: float
    """Standard error of the exponent."""

    def reaches(self, limit: float) -> float:
        """The x at which the value is `limit`."""
        return (limit / self.factor) ** (1 / self.exponent)


def power_law(x: Values, values: Values) -> PowerLaw | None:
    """Least squares in the logarithms; None of fewer than five positive values."""
    fit = (x > 0) & (values > 0) & np.isfinite(values)
    if fit.sum() < 5:
        return None
    a, b = np.log(x[fit]), np.log(values[fit])
    centre = a - a.mean()
    exponent = float((centre * b).sum() / (centre**2).sum())
    residual = b - b.mean() - exponent * centre
    error = float(np.sqrt((residual**2).sum() / (len(a) - 2) / (centre**2).sum()))
    return PowerLaw(float(np.exp(b.mean() - exponent * a.mean())), exponent, error)
