"""Batch and learning rate that published rules suggest for a size and a number of tokens."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from hornbook.plan.scaling.laws import OPERATIONS, law_named
from hornbook.settings.fields import Config

What = Literal["batch", "critical batch", "learning rate"]


class Rule(Config):
    """factor N^parameters D^tokens C^compute L^loss."""

    what: What
    factor: float
    parameters: float = 0.0
    tokens: float = 0.0
    compute: float = 0.0
    loss: float = 0.0
    name: str
    source: str


class Suggestion(Config):
    """What a rule says; a batch in tokens."""

    what: What
    value: float
    name: str
    source: str


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of `advice.toml`."""
    text = Path(__file__).with_name("advice.toml").read_text(encoding="utf-8")
    return tuple(Rule.model_validate(each) for each in tomllib.loads(text)["rule"])


def suggestions(parameters: float, tokens: float) -> list[Suggestion]:
    """What each rule says of a model of so many parameters without embeddings, trained on so many tokens."""
    loss = law_named("kaplan").loss(parameters, tokens)
    assert loss is not None
    found = []
    for rule in rules():
        value = rule.factor * parameters**rule.parameters * tokens**rule.tokens * loss**rule.loss
        value *= (OPERATIONS * parameters * tokens) ** rule.compute
        found.append(Suggestion(what=rule.what, value=value, name=rule.name, source=rule.source))
    return found


def good_batch(parameters: float, tokens: float, sequence: int, ranks: int) -> int:
    """A batch in tokens near the mean that rules suggest: a power of two of rows, one for each rank at least."""
    values = [each.value for each in suggestions(parameters, tokens) if each.what == "batch"]
    mean = 1.0
    for each in values:
        mean *= each ** (1 / len(values))
    rows = max(mean / sequence, float(ranks), 1.0)
    return sequence * 2 ** max(round_up_log2(ranks), int(rows).bit_length() - 1)


def round_up_log2(number: int) -> int:
    """The least n with 2^n >= number."""
    return (number - 1).bit_length()
