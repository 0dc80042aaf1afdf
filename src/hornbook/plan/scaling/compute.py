"""Training compute of published models in petaFLOP/s-days, and what a budget is beside them."""

import math
import tomllib
from functools import cache
from pathlib import Path

from pydantic import PositiveFloat

from hornbook.settings.fields import Config

PETAFLOPS_DAY = 8.64e19
"""Operations of a day at 1e15 a second: of eight V100 at their peak of 125 TFLOP/s."""


class PublishedCompute(Config):
    """A row of table D.1 of the GPT-3 paper (arXiv 2005.14165)."""

    name: str
    parameters: PositiveFloat
    tokens: PositiveFloat
    operations: PositiveFloat
    """Per parameter and token: 6, or 3 where a token passes one of two stacks."""
    days: PositiveFloat
    """petaFLOP/s-days as printed."""

    @property
    def petaflops_days(self) -> float:
        """As computed."""
        return petaflops_days(self.operations * self.parameters * self.tokens)


def petaflops_days(operations: float) -> float:
    """petaFLOP/s-days of so many operations."""
    return operations / PETAFLOPS_DAY


@cache
def published_compute() -> tuple[PublishedCompute, ...]:
    """The models of `published.toml`, the least first."""
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    found = (PublishedCompute.model_validate(each) for each in tomllib.loads(text)["model"])
    return tuple(sorted(found, key=lambda each: each.petaflops_days))


def nearest(operations: float) -> PublishedCompute:
    """The published model whose training took most nearly so many operations."""
    days = petaflops_days(operations)
    return min(published_compute(), key=lambda each: abs(math.log(each.petaflops_days / days)))
