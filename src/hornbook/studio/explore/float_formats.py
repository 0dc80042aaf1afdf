"""Rounding to fp32, fp16, bf16, float8 and int8 in numpy, bit for bit as torch and the engine round."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Format:
    """A floating-point format: a sign bit, `exponent` bits, `mantissa` bits."""

    name: str
    exponent: int
    mantissa: int
    has_infinity: bool = True
    """False: the highest exponent stores numbers too, and its last code is NaN (e4m3, arXiv 2209.05433)."""

    @property
    def smallest_normal(self) -> float:
        """Smallest number with the full mantissa; smaller (subnormal) numbers have fewer digits."""
        return 2.0 ** (2 - 2 ** (self.exponent - 1))

    @property
    def smallest(self) -> float:
        """Smallest number above zero."""
        return self.smallest_normal * 2.0**-self.mantissa

    @property
    def largest(self) -> float:
        """Largest finite number."""
        significand = 2 - 2.0 ** (1 - self.has_infinity - self.mantissa)
        return significand * 2.0 ** (2 ** (self.exponent - 1) - self.has_infinity)

    def nearest(self, values: Any) -> np.ndarray:
        """Round to nearest, ties to even. Beyond `largest`: infinity, or `largest` where there is no infinity."""
        x = np.asarray(values, np.float64)
        power = np.frexp(np.maximum(np.abs(x), self.smallest_normal))[1] - 1 - self.mantissa
        rounded = np.ldexp(np.rint(np.ldexp(x, -power)), power)
        beyond = np.copysign(math.inf if self.has_infinity else self.largest, x)
        return np.where(abs(rounded) > self.largest, beyond, rounded)

    def places(self, values: Any) -> np.ndarray:
        """Numbers between zero and the nearest number (int64, signed): its code without the sign bit."""
        x, top = self.nearest(values), (2**self.exponent - 1) << self.mantissa
        size = np.where(np.isfinite(x), abs(x), 0.0)
        step = np.frexp(np.maximum(size, self.smallest_normal))[1] - np.frexp(self.smallest_normal)[1]
        place = (step << self.mantissa) + np.ldexp(size / self.smallest, -step).astype(np.int64)
        special = top + np.where(np.isnan(x), 2**self.mantissa - 1, 0)
        return np.where(np.isfinite(x), place, special) * np.where(x < 0, -1, 1)

    def bits(self, value: float) -> str:
        """Sign, exponent and mantissa of the nearest number."""
        word = f"{abs(int(self.places(value))):0{self.exponent + self.mantissa}b}"
        return f"{int(math.copysign(1, value) < 0)} {word[: self.exponent]} {word[self.exponent :]}"


@dataclass(frozen=True)
class Int8:
    """Integers from -127 to 127, times a scale for the whole tensor: its largest magnitude over 127 (float32)."""

    largest: float
    """Largest magnitude of the tensor."""
    name: str = "int8"

    def nearest(self, values: Any) -> np.ndarray:
        """Round to the nearest multiple of the scale, as q8_0 files do."""
        return self.places(values) * (np.float32(self.largest) / np.float32(127))

    def places(self, values: Any) -> np.ndarray:
        """The integers, int64."""
        x = np.clip(values, -self.largest, self.largest).astype(np.float32)
        scaled = x * (1 / (np.float32(self.largest) / np.float32(127)))
        return np.copysign(np.floor(abs(scaled) + np.float32(0.5)), scaled).astype(np.int64)

    def bits(self, value: float) -> str:
        """The integer in two's complement."""
        return f"{int(self.places(value)) & 255:08b}"


FP16, BF16 = Format("fp16", 5, 10), Format("bf16", 8, 7)
FORMATS = Format("fp32", 8, 23), FP16, BF16, Format("fp8 e4m3", 4, 3, has_infinity=False), Format("fp8 e5m2", 5, 2)


def relative_errors(form: Format | Int8, values: np.ndarray, scale: float = 1.0) -> list[float | None]:
    """|stored - value| / |value| of values that are stored times `scale`; None for zero and for infinity."""
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = abs(form.nearest(values * scale) / scale - values) / abs(values)
    return [float(error) if math.isfinite(error) else None for error in errors]


def numbers_between(form: Format | Int8, low: float, high: float) -> int:
    """How many numbers of a format lie in the range, both ends included."""
    (first, last), (bottom, top) = form.places([low, high]).tolist(), form.nearest([low, high]).tolist()
    return max(last - first + 1 - (bottom < low) - (top > high), 0)


def number_text(value: float) -> str:
    """A stored number in ten digits."""
    return f"{value:.10g}" if math.isfinite(value) else ("-infinity" if value < 0 else "infinity")


def outcome(form: Format, stored: float) -> str:
    """The fate of a gradient that a format stores as this number, in words."""
    if not stored:
        return "underflows to zero"
    if math.isinf(stored):
        return "overflows: the step is refused"
    return "kept" if stored >= form.smallest_normal else "kept with fewer digits"
