"""Averages of the weights along a run: how much of the average each step replaces.

The share is a pure function of the tokens consumed, as learning rates are: a resume cannot shift it, and a half-life in
tokens means the same under a batch ramp. Sources: uniform (Polyak and Juditsky 1992, doi 10.1137/0330046), exponential
(Kingma and Ba 2015, arXiv 1412.6980, section 7.2).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from hornbook.optim.config.schedule_base import Axis, Problem, duration, length_problems
from hornbook.settings.fields import Config, Duration, Number


class NoAverage(Config):
    """No average is kept."""

    kind: Literal["none"] = "none"


class _Average(Config):
    begin: Duration = duration(0, "tokens")
    """Where averaging begins; until then the average is the weights."""
    evaluate: bool = True
    """Evaluate the average, and sample from it, in place of the weights that are trained."""

    def share(self, before: float, after: float, axis: Axis) -> float:
        """Share of the average that the weights of the step from `before` to `after` tokens replace, 0 to 1."""
        begin = axis.tokens(self.begin)
        return 1.0 if after <= begin else min(self.share_after(before, after, after - begin, axis), 1.0)

    def share_after(self, before: float, after: float, since: float, axis: Axis) -> float:  # noqa: ARG002
        """The same once averaging has begun; `since` are the tokens from there to `after`, at least one."""
        raise AssertionError("a kind defines it")

    def problems(self, axis: Axis) -> Iterator[Problem]:
        """What does not fit a run of this length; keys are below `train.average`."""
        if axis.tokens(self.begin) > axis.end:
            text = f"is after {axis.tokens(self.begin):,.0f} tokens, and the run ends after {axis.total:,}"
            yield "begin", f"{text}: let it begin earlier"


class MovingAverage(_Average):
    """Exponential moving average of the weights after each step."""

    kind: Literal["ema"] = "ema"
    decay: Number = Field(default=0.999, ge=0, lt=1)
    """Share of the average that a step leaves."""
    half_life: Duration | None = None
    """Length after which weights count half, such as `"1000 steps"` or `"50M tokens"`, in place of `decay`."""

    def share_after(self, before: float, after: float, since: float, axis: Axis) -> float:  # noqa: ARG002
        if self.half_life is None:
            return 1.0 - self.decay
        return 1.0 - 0.5 ** ((after - before) / axis.tokens(self.half_life))

    def problems(self, axis: Axis) -> Iterator[Problem]:
        yield from super().problems(axis)
        yield from length_problems(axis, "half_life", self.half_life)


class UniformAverage(_Average):
    """Mean of the weights after each step, every token with equal weight."""

    kind: Literal["mean"] = "mean"

    def share_after(self, before: float, after: float, since: float, axis: Axis) -> float:  # noqa: ARG002
        return (after - before) / since


AverageConfig = Annotated[NoAverage | MovingAverage | UniformAverage, Field(discriminator="kind")]
