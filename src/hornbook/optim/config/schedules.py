"""The learning-rate schedules that `optim.schedule.kind` names (protocol: `hornbook.optim.config.schedule_base`).

Sources: cosine with a floor (GPT-3, arXiv 2005.14165, app. B); WSD (MiniCPM, arXiv 2404.06395, eq. 1; 1 - sqrt decay
from arXiv 2405.18392); inverse square root (Vaswani et al. 2017, arXiv 1706.03762, section 5.3; T5, arXiv 1910.10683,
section 3.1.2; with a cool-down: Zhai et al. 2021, arXiv 2106.04560); power (arXiv 2408.13359).
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from hornbook.optim.config.cyclic_schedules import CosineRestarts, Cyclic, OneCycle
from hornbook.optim.config.schedule_base import (
    SHAPES,
    Axis,
    Problem,
    WarmedSchedule,
    duration,
    length_problems,
    point_problems,
    share_of,
)
from hornbook.settings.fields import Config, Duration, Number


class Constant(WarmedSchedule):
    """Warm-up, then the peak rate."""

    kind: Literal["constant"] = "constant"

    def curve(self, progress: float) -> float:  # noqa: ARG002
        return 1.0


class Linear(WarmedSchedule):
    """Straight line from the peak to `floor` x peak."""

    kind: Literal["linear"] = "linear"
    floor: float = Field(default=0.0, ge=0, le=1)
    """Factor at the end of the run."""

    def curve(self, progress: float) -> float:
        return 1.0 - (1.0 - self.floor) * progress


class Cosine(WarmedSchedule):
    """Half a cosine from the peak to `floor` x peak."""

    kind: Literal["cosine"] = "cosine"
    floor: float = Field(default=0.1, ge=0, le=1)
    """Factor at the end of the run."""

    def curve(self, progress: float) -> float:
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


class Polynomial(WarmedSchedule):
    """From the peak to `floor` x peak as a power of the share of the run that is left."""

    kind: Literal["polynomial"] = "polynomial"
    power: Number = Field(default=1.0, gt=0)
    """1 is a straight line; larger ones fall earlier."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Factor at the end of the run."""

    def curve(self, progress: float) -> float:
        return self.floor + (1.0 - self.floor) * (1.0 - progress) ** self.power


class Exponential(WarmedSchedule):
    """The same factor over equal lengths of the run."""

    kind: Literal["exponential"] = "exponential"
    factor: Number = Field(default=0.1, gt=0, lt=1)
    """The rate is multiplied by it over each `every`."""
    every: Duration | None = None
    """A length, such as `"1000 steps"`; by default all of the run after the warm-up."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Smallest factor."""

    def after_warmup(self, tokens: float, warmup: float, axis: Axis) -> float:
        length = max(axis.total - warmup, 1) if self.every is None else axis.tokens(self.every)
        return max(self.factor ** (max(tokens - warmup, 0.0) / length), self.floor)

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from super().problems(axis)
        yield from length_problems(axis, "every", self.every)


class WSD(WarmedSchedule):
    """Warm-up, stable, decay: the peak rate until the last `decay_share` of the run, then down to `floor`."""

    kind: Literal["wsd"] = "wsd"
    floor: float = Field(default=0.0, ge=0, le=1)
    """Factor at the end of the run."""
    decay_share: float = Field(default=0.2, gt=0, le=1)
    """Share of the steps after warm-up that decay."""
    decay: Duration | None = None
    """Length of the decay, such as `"2B tokens"`, in place of `decay_share`."""
    shape: Literal["sqrt", "linear", "cosine"] = "sqrt"
    """Form of the decay: 1 - sqrt(x), a straight line or half a cosine."""

    def after_warmup(self, tokens: float, warmup: float, axis: Axis) -> float:
        if self.decay is None:
            return super().after_warmup(tokens, warmup, axis)
        return self._tail(share_of(tokens, axis.total - axis.tokens(self.decay), axis.total))

    def curve(self, progress: float) -> float:
        return self._tail(max(progress - (1.0 - self.decay_share), 0.0) / self.decay_share)

    def _tail(self, into: float) -> float:
        return 1.0 - (1.0 - self.floor) * SHAPES[self.shape](into)

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from super().problems(axis)
        yield from length_problems(axis, "decay", self.decay)
        if self.decay is not None and axis.tokens(self.decay) + axis.tokens(self.warmup) > axis.end:
            yield "decay", f"with the warm-up it is longer than the run of {axis.total:,} tokens: shorten it"


class _PowerLaw(WarmedSchedule):
    hold: Duration = duration(0, "tokens")
    """How long the peak rate lasts after the warm-up."""
    timescale: Duration | None = None
    """T of (T / (T + t))^exponent, t counted from the end of `hold`; by default warm-up and `hold` together, so that t
    counts from the beginning of the run, or 10,000 steps where both are 0."""
    cooldown: Duration = duration(0, "tokens")
    """Length of a last part in which the rate is multiplied by the share of it that is left."""

    def after_warmup(self, tokens: float, warmup: float, axis: Axis) -> float:
        begin, cooldown = warmup + axis.tokens(self.hold), axis.tokens(self.cooldown)
        scale = self._timescale(begin, axis)
        ratio = scale / (scale + max(tokens - begin, 0.0))
        left = 1.0 - share_of(tokens, axis.total - cooldown, axis.total) if cooldown else 1.0
        return self.law(ratio) * left

    def _timescale(self, begin: float, axis: Axis) -> float:
        if self.timescale is not None:
            return axis.tokens(self.timescale)
        return begin or axis.batches.tokens_of(10_000)

    def law(self, ratio: float) -> float:  # noqa: ARG002
        """Factor where T / (T + t) is `ratio`."""
        raise AssertionError("a kind defines it")

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from super().problems(axis)
        yield from length_problems(axis, "timescale", self.timescale)
        parts = [axis.tokens(each) for each in (self.warmup, self.hold, self.cooldown)]
        if parts[0] <= axis.end < sum(parts):
            yield (
                "hold" if self.hold.amount else "cooldown",
                f"warm-up, hold and cooldown are {sum(parts):,.0f} tokens and the run has {axis.total:,}: shorten them",
            )


class InverseSqrt(_PowerLaw):
    """The peak over the square root of time; T5's rate is `lr` 0.01 with `hold` "10000 steps"."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"

    def law(self, ratio: float) -> float:
        return math.sqrt(ratio)


class Power(_PowerLaw):
    """The peak over a power of time."""

    kind: Literal["power"] = "power"
    exponent: Number = Field(default=0.51, gt=0)
    """Exponent of time in the denominator."""

    def law(self, ratio: float) -> float:
        return ratio**self.exponent


class Steps(WarmedSchedule):
    """Down in steps, by a factor or by an amount, at given points or after equal lengths."""

    kind: Literal["step"] = "step"
    factor: Number = Field(default=0.1, gt=0, lt=1)
    """The rate is multiplied by it at each step."""
    amount: Number = Field(default=0.0, ge=0, lt=1)
    """Share of the peak that is subtracted at each step, in place of `factor`; 0: multiply."""
    points: list[Duration] = Field(default_factory=list)
    """Where the rate steps down, from the beginning of the run, such as `["50%", "75%"]` or `["30000 steps"]`."""
    every: Duration | None = None
    """Length between steps, from the end of the warm-up on, in place of `points`."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Smallest factor."""

    def after_warmup(self, tokens: float, warmup: float, axis: Axis) -> float:
        if self.every is None:
            count = bisect_right([axis.point(each) for each in self.points], tokens)
        else:
            count = int(max(tokens - warmup, 0.0) // axis.point(self.every))
        return max(1.0 - self.amount * count if self.amount else self.factor**count, self.floor)

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from super().problems(axis)
        if bool(self.points) == (self.every is not None):
            yield "points", "give optim.schedule.points or optim.schedule.every, one of the two"
            return
        yield from length_problems(axis, "every", self.every)
        yield from point_problems(axis, "points", self.points, axis.tokens(self.warmup))


class Segment(Config):
    """A part of a schedule, from the factor at the end of the part before it to `to`."""

    until: Duration
    """Where it ends, from the beginning of the run."""
    to: float = Field(ge=0, le=1)
    """Factor at its end."""
    shape: Literal["linear", "cosine", "sqrt", "exponential"] = "linear"
    """Form: a straight line, half a cosine, the square root of time, or the same factor over equal lengths."""

    def at(self, share: float, begin: float) -> float:
        """Factor after `share` of the segment, 0 to 1, from the factor `begin`."""
        if self.shape == "exponential":
            return begin * (self.to / begin) ** share
        return begin + (self.to - begin) * SHAPES[self.shape](share)


class Piecewise(WarmedSchedule):
    """A list of segments, one after the other; after the last the rate stays."""

    kind: Literal["piecewise"] = "piecewise"
    segments: list[Segment] = Field(min_length=1)
    """After the warm-up, such as `[{ until = "30%", to = 0.4, shape = "cosine" }, { until = "90%", to = 0.4 }]`."""

    def after_warmup(self, tokens: float, warmup: float, axis: Axis) -> float:
        ends = [axis.point(each.until) for each in self.segments]
        number = bisect_right(ends, tokens)
        if number == len(ends):
            return self.segments[-1].to
        begin, factor = (ends[number - 1], self.segments[number - 1].to) if number else (warmup, 1.0)
        return self.segments[number].at(share_of(tokens, begin, ends[number]), factor)

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from super().problems(axis)
        ends = [each.until for each in self.segments]
        yield from point_problems(axis, "segments", ends, axis.tokens(self.warmup))
        factors = [1.0, *(each.to for each in self.segments)]
        for number, segment in enumerate(self.segments):
            if segment.shape == "exponential" and not all(factors[number : number + 2]):
                yield f"segments.{number}.to", "an exponential never reaches or leaves 0: take a small factor"


Schedule = Annotated[
    Constant
    | Linear
    | Cosine
    | WSD
    | InverseSqrt
    | Power
    | Steps
    | Exponential
    | Polynomial
    | CosineRestarts
    | Cyclic
    | OneCycle
    | Piecewise,
    Field(discriminator="kind"),
]
