"""The recorded series of a run, as arrays that rules judge: metrics, statistics of layers, evaluations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from hornbook.files.run_status import objective_of

MIN_STEPS = 64
"""Steps below which curves are not judged."""
WINDOW = 32
"""Newest steps of which medians are taken."""
Series = Float64[np.ndarray, " steps"]


@dataclass(frozen=True)
class Facts:
    """What the recipe says, as far as rules ask."""

    peak_rate: float = 0.0
    """The largest learning rate of the schedule; 0: not known."""
    planned_tokens: int = 0
    """Length of the run; 0: not known."""
    unigram_loss: float | None = None
    """Entropy of single tokens of the training text, in nats: what a model without context reaches. None: not known,
    or the objective is not the next token."""
    has_qk_norm: bool = False
    has_z_loss: bool = False
    is_fp16: bool = False


@dataclass(frozen=True)
class Evaluated:
    """Validation loss over the steps that were evaluated."""

    step: Int64[np.ndarray, " evaluations"]
    tokens: Int64[np.ndarray, " evaluations"]
    loss: Float64[np.ndarray, " evaluations"]


@dataclass(frozen=True)
class Layers:
    """Statistics of layers over the steps that were measured; NaN where a step has no value."""

    step: Int64[np.ndarray, " measured"]
    tokens: Int64[np.ndarray, " measured"]
    layers: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    columns: Mapping[str, Float64[np.ndarray, "measured names"]] = field(default_factory=dict)
    """`gradient_norm`, `weight_norm`, `update_ratio` by layer; `activation_rms`, `dead_units`, `idle_experts`,
    `max_logit` by block."""
    lr: Series = field(default_factory=lambda: np.empty(0))
    """Learning rate of each; NaN in records of before it was written."""
    log_z: Series = field(default_factory=lambda: np.empty(0))
    loss_scale: Series = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Curves:
    """All that rules judge. Arrays have one value per step; NaN where the step has none."""

    step: Int64[np.ndarray, " steps"]
    tokens: Int64[np.ndarray, " steps"]
    loss: Series
    gradient_norm: Series
    lr: Series
    seconds: Series
    data_seconds: Series
    skipped: Bool[np.ndarray, " steps"]
    layers: Layers
    evaluated: Evaluated
    facts: Facts = Facts()

    def __len__(self) -> int:
        return len(self.step)


def curves_of(
    steps: Sequence[Mapping[str, Any]],
    statistics: Sequence[Mapping[str, Any]] = (),
    evaluations: Sequence[Mapping[str, Any]] = (),
    facts: Facts = Facts(),
) -> Curves:
    """From records of metrics.jsonl (those in force), statistics.jsonl and evals/."""
    scored = [each for each in evaluations if "loss" in each.get("all", {})]
    return Curves(
        step=_whole(steps, "step"),
        tokens=_whole(steps, "tokens"),
        loss=_real(steps, "loss"),
        gradient_norm=_real(steps, "gradient_norm"),
        lr=_real(steps, "lr"),
        seconds=_real(steps, "seconds"),
        data_seconds=_real(steps, "data_seconds"),
        skipped=np.array([bool(each.get("skipped")) for each in steps], dtype=bool),
        layers=_layers(statistics),
        evaluated=Evaluated(
            _whole(scored, "step"),
            _whole(scored, "tokens"),
            np.array(_floats([objective_of(each["all"]) for each in scored]), dtype=float),
        ),
        facts=facts,
    )


def _layers(records: Sequence[Mapping[str, Any]]) -> Layers:
    """Those of one set of layers: that of the newest record."""
    same = [each for each in records if each["layers"] == records[-1]["layers"]]
    if not same:
        return Layers(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    names = ("gradient_norm", "weight_norm", "update_ratio", "activation_rms", "dead_units", "max_logit")
    columns = {name: np.array([_floats(each[name]) for each in same], dtype=float) for name in names}
    unknown = [None] * len(same[-1]["blocks"])  # records of before it was written
    idle = [_floats(each.get("idle_experts", unknown)) for each in same]
    columns["idle_experts"] = np.array(idle, dtype=float)
    of = tuple(same[-1]["layers"]), tuple(same[-1]["blocks"])
    series = (_real(same, key) for key in ("lr", "log_z", "loss_scale"))
    return Layers(_whole(same, "step"), _whole(same, "tokens"), *of, columns, *series)


def _whole(records: Sequence[Mapping[str, Any]], key: str) -> Int64[np.ndarray, " n"]:
    return np.array([each[key] for each in records], dtype=np.int64)


def _real(records: Sequence[Mapping[str, Any]], key: str) -> Series:
    return np.array(_floats([each.get(key) for each in records]), dtype=float)


def _floats(values: Sequence[float | None]) -> list[float]:
    return [math.nan if each is None else each for each in values]


def settled(curves: Curves | Layers) -> slice:
    """The steps behind the warm-up: from where the learning rate is first within 1 % of its largest."""
    if not len(curves):
        return slice(0, 0)
    lr = np.nan_to_num(curves.lr)
    return slice(int(np.argmax(lr >= 0.99 * lr.max())), None)
