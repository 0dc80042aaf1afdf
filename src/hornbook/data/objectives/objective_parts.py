"""Any objective as a mixture of simple ones."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from hornbook.data.config import (
    UL2,
    Causal,
    Denoiser,
    FillInTheMiddle,
    Infill,
    Masked,
    Mixture,
    ObjectiveConfig,
    OnLabels,
    Prefix,
    Seq2Seq,
    Span,
    Start,
    UnlabelledConfig,
)
from hornbook.errors import UsageError


class Part(NamedTuple):
    """A simple objective in a mixture."""

    weight: float
    """Share of the rows; those of all parts sum to 1."""
    objective: Causal | Prefix | Masked | Span | Infill | Denoiser
    key: str
    """The dotted key that names it in errors."""
    start: Start | None = None
    """Of pairs, the first token of the decoder's input."""


def objective_parts(objective: UnlabelledConfig, key: str = "data.objective", weight: float = 1.0) -> Iterator[Part]:
    """The parts of an objective; what is not a mixture has one. Rows of fill-in-the-middle are causal."""
    if isinstance(objective, Mixture):
        total = sum(each.weight for each in objective.parts)
        for number, each in enumerate(objective.parts):
            yield from objective_parts(each.objective, f"{key}.parts.{number}.objective", weight * each.weight / total)
    elif isinstance(objective, UL2):
        total = sum(each.weight for each in objective.denoisers)
        for number, each in enumerate(objective.denoisers):
            yield Part(weight * each.weight / total, each, f"{key}.denoisers.{number}", objective.start)
    elif isinstance(objective, FillInTheMiddle):
        yield Part(weight, Causal(), key)
    elif isinstance(objective, Span | Infill):
        yield Part(weight, objective, key, objective.start)
    else:
        yield Part(weight, objective, key)


def start_of(objective: ObjectiveConfig) -> Start | None:
    """First token of the decoder's input: in a mixture that of most rows; None where there are no pairs."""
    if isinstance(objective, OnLabels):
        return objective.start if isinstance(objective, Seq2Seq) else None
    return max(objective_parts(objective), key=lambda part: part.weight).start


def cumulated(parts: Sequence[Part]) -> Float64[np.ndarray, " parts"]:
    """Cumulated weights of the parts, the last exactly 1."""
    bounds = np.cumsum([part.weight for part in parts])
    bounds[-1] = 1.0
    return bounds


def family_of(parts: Sequence[Part]) -> str:
    """Which models the parts are for: `decoder`, `encoder` or `encoder-decoder`.

    Raises UsageError where they are not all for the same.
    """
    first = parts[0]
    for part in parts:
        if _family(part) != _family(first):
            raise UsageError(
                f"{part.key} is for {_family(part)} models and {first.key} for {_family(first)} models, and a run "
                "trains one model: mix objectives of one family"
            )
    return _family(first)


def _family(part: Part) -> str:
    if isinstance(part.objective, Masked):
        return "encoder"
    return "decoder" if part.start is None else "encoder-decoder"
