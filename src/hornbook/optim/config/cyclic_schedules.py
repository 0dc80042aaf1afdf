"""Schedules that rise more than once: restarts, triangles, and one cycle.

Sources: restarts (Loshchilov and Hutter 2017, arXiv 1608.03983), re-warmed for continued training (Ibrahim et al. 2024,
arXiv 2403.08763); triangles (Smith 2017, arXiv 1506.01186); one cycle (Smith and Topin 2017, arXiv 1708.07120).
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from hornbook.optim.config.batch_schedule import Batches
from hornbook.optim.config.schedule_base import (
    SHAPES,
    Axis,
    Problem,
    ScheduleConfig,
    WarmedSchedule,
    duration,
    length_problems,
    point_problems,
    share_of,
)
from hornbook.settings.fields import Count, Duration, Number


class CosineRestarts(WarmedSchedule):
    """Half a cosine to `floor` x peak, again and again; with `rewarm` the rate rises again in a straight line."""

    kind: Literal["cosine_restarts"] = "cosine_restarts"
    cycles: Count = Field(default=1, ge=1)
    """Number of equal cycles after the warm-up."""
    points: list[Duration] = Field(default_factory=list)
    """Where later cycles begin, from the beginning of the run, in place of `cycles`."""
    rewarm: Duration = duration(0, "tokens")
    """Length of the rise from `floor` at the beginning of each later cycle."""
    shrink: Number = Field(default=1.0, gt=0, le=1)
    """Peak of each cycle over that of the one before."""
    floor: float = Field(default=0.1, ge=0, le=1)
    """Factor at the end of a cycle."""

    def after_warmup(self, tokens: float, warmup: float, axis: Axis) -> float:
        ends = [*self._starts(warmup, axis), axis.total]
        number = min(bisect_right(ends, tokens), len(ends) - 1)
        begin, peak = ends[number - 1] if number else warmup, max(self.shrink**number, self.floor)
        if number and (rise := axis.tokens(self.rewarm)):
            if tokens < begin + rise:
                return self.floor + (peak - self.floor) * ((tokens - begin) / rise)
            begin += rise
        progress = share_of(tokens, begin, ends[number])
        return self.floor + (peak - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))

    def _starts(self, warmup: float, axis: Axis) -> list[float]:
        """Where the cycles after the first begin."""
        if self.points:
            return [axis.point(each) for each in self.points]
        return [warmup + (axis.total - warmup) * number / self.cycles for number in range(1, self.cycles)]

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from super().problems(axis)
        warmup, rise = axis.tokens(self.warmup), axis.tokens(self.rewarm)
        if self.points and self.cycles > 1:
            yield "points", "give optim.schedule.points or optim.schedule.cycles, one of the two"
        yield from point_problems(axis, "points", self.points, warmup)
        starts = self._starts(warmup, axis)
        lengths = [end - start for start, end in zip([warmup, *starts], [*starts, axis.end], strict=True)]
        if warmup <= axis.end and min(lengths) < 1:
            yield "points" if self.points else "cycles", "a cycle would have no length: take fewer"
        elif starts and rise > min(lengths[1:]):
            yield "rewarm", f"it is longer than a cycle ({min(lengths[1:]):,.0f} tokens): shorten it"


class Cyclic(ScheduleConfig):
    """Triangles between `floor` x peak and the peak."""

    kind: Literal["cyclic"] = "cyclic"
    every: Duration = duration(0.1, "share")
    """Length of a triangle."""
    rise: float = Field(default=0.5, gt=0, lt=1)
    """Share of a triangle in which the rate rises."""
    shrink: Number = Field(default=1.0, gt=0, le=1)
    """Height of each triangle over that of the one before."""
    floor: float = Field(default=0.1, ge=0, lt=1)
    """Factor at the beginning and the end of a triangle."""

    def __call__(self, tokens: float, total_tokens: int, batches: Batches) -> float:
        cycles = tokens / Axis(total_tokens, batches).tokens(self.every)
        into = cycles % 1.0
        height = into / self.rise if into <= self.rise else (1.0 - into) / (1.0 - self.rise)
        return self.floor + (1.0 - self.floor) * height * self.shrink ** math.floor(cycles)

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from length_problems(axis, "every", self.every)


class OneCycle(ScheduleConfig):
    """One rise to the peak and one fall over the whole run."""

    kind: Literal["one_cycle"] = "one_cycle"
    start: float = Field(default=0.04, gt=0, le=1)
    """Factor at the beginning of the run."""
    rise: float = Field(default=0.3, gt=0, lt=1)
    """Share of the run in which the rate rises."""
    floor: float = Field(default=4e-6, ge=0, le=1)
    """Factor at the end of the run."""
    shape: Literal["cosine", "linear"] = "cosine"
    """Form of rise and fall."""

    def __call__(self, tokens: float, total_tokens: int, batches: Batches) -> float:  # noqa: ARG002
        top = self.rise * total_tokens
        if tokens <= top:
            return self.start + (1.0 - self.start) * SHAPES[self.shape](share_of(tokens, 0, top))
        return 1.0 + (self.floor - 1.0) * SHAPES[self.shape](share_of(tokens, top, total_tokens))
