"""The protocol of learning-rate schedules: pure functions of tokens consumed.

A schedule is a frozen config that is also the function: `schedule(tokens, total_tokens, batches)` returns the factor
on the peak learning rate. Nothing counts calls, so a resume, a changed world size or a batch ramp cannot shift it: at a
given token the factor is the same for any batches. A length in steps is the tokens of the first so many steps of the
run.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import Field

from hornbook.optim.config.batch_schedule import Batches
from hornbook.settings.fields import Config, Duration

Problem = tuple[str, str]
"""(key below `optim.schedule`, what is wrong and the remedy)."""
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda share: share,
    "cosine": lambda share: 0.5 * (1.0 - math.cos(math.pi * share)),
    "sqrt": math.sqrt,
}
"""Part of the way from one factor to another that is done after `share` of the time, 0 to 1."""


def duration(amount: float, unit: Literal["tokens", "steps", "share"]) -> Duration:
    """A default value of a setting that is a duration."""
    return Duration(amount=amount, unit=unit)


@dataclass(frozen=True)
class Axis:
    """The tokens of a run, on which schedules lie."""

    total: int
    """Tokens of the whole run."""
    batches: Batches

    @property
    def end(self) -> float:
        """Tokens of all steps, the last of which may be larger than what is left of `total`."""
        return self.batches.tokens_of(self.batches.steps(0, self.total))

    def tokens(self, length: Duration) -> float:
        """A length in tokens."""
        return length.tokens(self.total, self.batches.tokens_of)

    def point(self, position: Duration) -> float:
        """A position in tokens from the beginning of the run: whole tokens, so that a share is not just before them."""
        return round(self.tokens(position))


def share_of(tokens: float, begin: float, end: float) -> float:
    """Share of the way from `begin` to `end` at `tokens`, from 0 to 1."""
    return min(max((tokens - begin) / max(end - begin, 1), 0.0), 1.0)


class ScheduleConfig(Config):
    """Base of all schedules."""

    def __call__(self, tokens: float, total_tokens: int, batches: Batches) -> float:  # noqa: ARG002
        """Factor on the peak learning rate for the step that starts at `tokens`; `batches` are the sizes of all steps.

        `total_tokens` is the length of the run.
        """
        raise AssertionError("each kind defines it")

    def problems(self, axis: Axis) -> Iterator[Problem]:  # noqa: ARG002
        """What does not fit a run of this length."""
        yield from ()


class WarmedSchedule(ScheduleConfig):
    """A schedule that begins with a linear warm-up."""

    warmup: Duration = duration(0, "tokens")
    """Linear warm-up: `"200 steps"`, `"375M tokens"` or a share of the run such as `"1%"`."""
    warmup_start: float = Field(default=0.0, ge=0, le=1)
    """Factor from which the warm-up rises."""

    def __call__(self, tokens: float, total_tokens: int, batches: Batches) -> float:
        """During warm-up it follows the tokens consumed after the step, so that no step has a rate of zero."""
        axis = Axis(total_tokens, batches)
        warmup = axis.tokens(self.warmup)
        consumed = tokens + batches.at(tokens)
        if consumed <= warmup:
            return self.warmup_start + (1.0 - self.warmup_start) * (consumed / warmup)
        return self.after_warmup(tokens, warmup, axis)

    def after_warmup(self, tokens: float, warmup: float, axis: Axis) -> float:
        """Factor after a warm-up of `warmup` tokens; `tokens` may be less within the step in which it ends."""
        return self.curve(share_of(tokens, warmup, axis.total))

    def curve(self, progress: float) -> float:  # noqa: ARG002
        """Factor at `progress`, which runs from 0 (end of warm-up) to 1 (end of the run)."""
        raise AssertionError("a kind defines `curve` or `after_warmup`")

    def problems(self, axis: Axis) -> Iterator[Problem]:
        if (warmup := axis.tokens(self.warmup)) > axis.end:
            yield "warmup", f"it ends {_after(axis, warmup)}: shorten it, such as to '1%', or lengthen the run"


def _after(axis: Axis, position: float) -> str:
    return f"after {position:,.0f} tokens, and the run ends after {axis.total:,}"


def point_problems(axis: Axis, key: str, points: list[Duration], begin: float) -> Iterator[Problem]:
    """What is wrong with positions that must rise from `begin`, the end of warm-up, and lie within the run."""
    found = [axis.point(each) for each in points]
    if any(one >= other for one, other in pairwise([begin, *found])):
        listed = ", ".join(f"{each:,.0f}" for each in found)
        yield key, f"they are at {listed} tokens, and must rise from the end of the warm-up at {begin:,.0f}"
    elif found and found[-1] > axis.end:
        text = "lengthen the run (train.tokens), or move or leave out what lies behind its end"
        yield key, f"the last is {_after(axis, found[-1])}: {text}"


def length_problems(axis: Axis, key: str, length: Duration | None) -> Iterator[Problem]:
    """What is wrong with the length of a cycle or an interval."""
    if length is not None and axis.tokens(length) < 1:
        yield key, "it is shorter than a token: give a length such as '1000 steps', '50M tokens' or '10%'"
