"""Ramps: the tokens of a step, or the reach of attention, as a pure function of the tokens consumed before it.

A ramp is a frozen config that lists levels: (first token, batch). Nothing counts calls, so a resume, a rewind, skipped
ranges or another number of ranks cannot shift it. Sources: growth in equal increments that last equally long in tokens
(GPT-3, arXiv 2005.14165, appendix B; BLOOM, arXiv 2211.05100) or in steps (ModernBERT, arXiv 2412.13663); stages (Llama
3, arXiv 2407.21783, section 3.4).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Literal

from pydantic import Field

from hornbook.settings.fields import Config, Count


@dataclass(frozen=True)
class Batches:
    """Tokens of every step of a run: a step function of the clock."""

    firsts: tuple[int, ...]
    """Tokens consumed at which the size with the same index in `sizes` begins: rising, the first is 0."""
    sizes: tuple[int, ...]
    """Tokens of a step that begins there."""

    def at(self, tokens: float) -> int:
        """Tokens of the step that begins after `tokens`."""
        return self.sizes[bisect_right(self.firsts, tokens) - 1]

    def runs(self, begin: int = 0) -> Iterator[tuple[int, int, float]]:
        """(first token, size, steps) of each run of equal steps from token `begin` on; the last has infinitely many."""
        for number in range(bisect_right(self.firsts, begin) - 1, len(self.sizes) - 1):
            size = self.sizes[number]
            steps = math.ceil((self.firsts[number + 1] - begin) / size)
            if steps > 0:  # a large step may skip levels
                yield begin, size, steps
                begin += steps * size
        yield begin, self.sizes[-1], math.inf

    def steps(self, begin: int, end: int) -> int:
        """Steps that take the clock from `begin` to `end` or past it."""
        return int(sum(min(steps, max(-((first - end) // size), 0)) for first, size, steps in self.runs(begin)))

    def tokens_of(self, steps: float, begin: int = 0) -> float:
        """Tokens that `steps` steps take from token `begin` on: by default the first ones of a run."""
        for first, size, count in self.runs(begin):
            if steps <= count:
                return first + steps * size - begin
            steps -= count
        raise AssertionError("the last run of equal steps has no end")

    def then(self, tokens: int, following: "Batches") -> "Batches":
        """These sizes up to the step boundary after `tokens`, from there on those of `following`."""
        kept = bisect_left(self.firsts, tokens)
        later = bisect_right(following.firsts, tokens)
        firsts = (*self.firsts[:kept], tokens, *following.firsts[later:])
        return Batches(firsts, (*self.sizes[:kept], *following.sizes[later - 1 :]))

    def describe(self) -> str:
        """The sizes in words: `4,096 tokens`, or `4,096 to 16,384 tokens (4 sizes, 16,384 from token 100,000 on)`."""
        last = f"{self.sizes[-1]:,}"
        if len(self.sizes) == 1:
            return f"{last} tokens"
        return f"{self.sizes[0]:,} to {last} tokens ({len(self.sizes)} sizes, {last} from token {self.firsts[-1]:,} on)"


class _Ramp(Config):
    def batches(self, full: int) -> Batches:
        """The batches of a run whose full batch is `full` tokens; `problems` must have none."""
        firsts, sizes = zip(*self.levels(full), strict=True)
        return Batches(firsts, sizes)

    def levels(self, full: int) -> list[tuple[int, int]]:
        """(first token, tokens of a step) of every size; the last is `full`."""
        return [(0, full)]

    def problems(self, full: int, of: str = "train.batch_tokens") -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """(key below the ramp, what is wrong and the remedy); `of`: the setting that says what is full."""
        yield from ()


class NoRamp(_Ramp):
    """Full from the first step on."""

    kind: Literal["none"] = "none"


class LinearRamp(_Ramp):
    """In equal increments from few tokens to all: of a batch (`train.batch_tokens`), or of a row (`train.sequence`)."""

    kind: Literal["linear"] = "linear"
    start_tokens: Count = Field(ge=1)
    """Tokens of the first step."""
    increment_tokens: Count | None = Field(default=None, ge=1)
    """Tokens by which it grows each time; by default `start_tokens`."""
    over_tokens: Count = Field(ge=1)
    """Tokens of training from which on it is full."""
    equal: Literal["tokens", "steps"] = "tokens"
    """Unit in which all sizes last equally long: `tokens` makes it a straight line over tokens."""

    @property
    def increment(self) -> int:
        """Tokens by which it grows."""
        return self.start_tokens if self.increment_tokens is None else self.increment_tokens

    def levels(self, full: int) -> list[tuple[int, int]]:
        sizes = range(self.start_tokens, full, self.increment)
        parts = list(accumulate([1] * len(sizes) if self.equal == "tokens" else sizes))
        ends = [-(-self.over_tokens * part // parts[-1]) for part in parts]  # rounded up: no step comes too early
        return list(zip([0, *ends], [*sizes, full], strict=True))

    def problems(self, full: int, of: str = "train.batch_tokens") -> Iterator[tuple[str, str]]:
        if self.start_tokens >= full:
            yield "start_tokens", f"{self.start_tokens:,} is not less than {of} ({full:,}): lower it"
        elif (full - self.start_tokens) % self.increment:
            key = "start_tokens" if self.increment_tokens is None else "increment_tokens"
            text = f"steps of {self.increment:,} do not lead from {self.start_tokens:,} to {of}"
            yield key, f"{text} ({full:,}): what they add must be a multiple"
        elif len(range(self.start_tokens, full, self.increment)) > self.over_tokens:
            yield "over_tokens", "is less than one token for each size: raise it"


class BatchStage(Config):
    """A batch, and how long it is used."""

    batch_tokens: Count = Field(ge=1)
    """Tokens per optimizer step."""
    until_tokens: Count = Field(ge=1)
    """Tokens consumed from which on the next stage's batch is used."""


class StagedRamp(_Ramp):
    """One batch after the other, then `train.batch_tokens`."""

    kind: Literal["stages"] = "stages"
    stages: list[BatchStage] = Field(min_length=1)
    """Batches before the full one, such as `[{ batch_tokens = "4Mi", until_tokens = "252M" }]`."""

    def levels(self, full: int) -> list[tuple[int, int]]:
        firsts = [0, *(stage.until_tokens for stage in self.stages)]
        return list(zip(firsts, [*(stage.batch_tokens for stage in self.stages), full], strict=True))

    def problems(self, full: int, of: str = "train.batch_tokens") -> Iterator[tuple[str, str]]:  # noqa: ARG002
        if any(one.until_tokens >= other.until_tokens for one, other in pairwise(self.stages)):
            yield "stages", "stages must end at growing until_tokens"


Ramp = Annotated[NoRamp | LinearRamp | StagedRamp, Field(discriminator="kind")]
