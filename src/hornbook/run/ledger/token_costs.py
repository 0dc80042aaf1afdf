"""What tokens cost along a run: where attention reaches farther as it goes on, later ones cost more than earlier ones.

Times of past steps predict those to come by operations, not by tokens. A token costs 1 where it is the same all along.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from hornbook.data.config.data import DataConfig
from hornbook.model.config.flops import step_operations
from hornbook.model.config.model_config import ModelConfig


@dataclass(frozen=True)
class Work:
    """Operations of the tokens of a run, in those of its last token."""

    levels: tuple[tuple[int, float], ...] = ((0, 1.0),)
    """(first token, cost of each from there on); the first is 0."""

    def between(self, first: int, end: float) -> float:
        """Of the tokens from `first` up to `end`, which is not before it."""
        return sum(max(min(end, last) - begin, 0.0) * cost for begin, last, cost in self._parts(first))

    def tokens(self, first: int, work: float) -> float:
        """How many tokens from `first` on are so much work."""
        done = 0.0
        for begin, last, cost in self._parts(first):
            if work <= (last - begin) * cost:
                return done + work / cost
            work, done = work - (last - begin) * cost, done + last - begin
        raise AssertionError("the last level has no end")

    def _parts(self, first: int) -> Iterator[tuple[float, float, float]]:
        """(first token, end, cost) of each level from token `first` on."""
        for (begin, cost), (last, _) in pairwise([*self.levels, (inf, 0.0)]):
            if last > first:
                yield max(begin, first), last, cost


EVEN = Work()
"""Every token costs the same."""


def work_of(model: ModelConfig, data: DataConfig, vocab: int, sequence: int) -> Work:
    """The work of a run, by the model's operations in rows that attention reaches so far (`data.sequence_ramp`)."""
    levels = data.sequence_ramp.levels(sequence)
    costs = [step_operations(model, vocab, reach, (1, 0)).causal for _, reach in levels]
    return Work(tuple((first, cost / costs[-1]) for (first, _), cost in zip(levels, costs, strict=True)))
