"""Moving a threshold over stored columns equals deciding anew with that threshold."""

import time

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.text.config import rules as configs
from hornbook.text.config.step import DecisionConfig
from hornbook.text.refinery.quality.rules import Rules
from hornbook.text.refinery.scores.curve import Signals, curve, group_shares

CONFIGS = (
    configs.GopherQualityConfig(),
    configs.GopherRepetitionConfig(),
    configs.FineWebConfig(),
    configs.C4Config(),
    configs.MC4Config(),
)


def make_columns(step: Rules, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    draw = np.random.default_rng(1)
    columns = {name: draw.integers(0, 300, rows) for name in step.needs}
    columns |= {
        name: draw.integers(-9, 2, rows) for name in step.needs if name.endswith(("ipsum_line", "bracket_line"))
    }
    return columns, draw.integers(1, 10_000, rows)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_equal_to_deciding_again(config: DecisionConfig) -> None:
    step = config.build()
    columns, sizes = make_columns(step, 5000)
    for rule in step.rules:
        values = [0, 0.01, 0.2, 0.7, 1, 2, 5, 100, 250]
        for found, value in zip(curve(step, Signals(columns, sizes), rule.key, values), values, strict=True):
            kept = config.model_copy(update={rule.key: value}).build().decide(columns) == 0
            assert (found.value, found.documents, found.bytes) == (value, kept.sum(), sizes[kept].sum())


def test_an_unknown_threshold_is_refused() -> None:
    step = configs.MC4Config().build()
    with pytest.raises(UsageError, match="min_line_length"):
        curve(step, Signals(*make_columns(step, 3)), "min_words", [1])


def test_what_was_measured_is_no_threshold() -> None:
    step = configs.FineWebConfig().build()
    with pytest.raises(UsageError, match=r"fineweb\.short_line is part of what was measured"):
        curve(step, Signals(*make_columns(step, 3)), "short_line", [20])


def test_a_threshold_that_is_off_can_be_moved() -> None:
    step, off = (configs.MC4Config(min_line_length=length).build() for length in (200, None))
    signals = Signals(*make_columns(step, 1000))
    assert curve(off, signals, "min_line_length", [50]) == curve(step, signals, "min_line_length", [50])


def test_shares_of_groups() -> None:
    names, numbers = ["a", "b", "nobody"], np.array([0, 1, 1, 0, 1], np.int32)
    assert group_shares(names, numbers, np.array([True, True, False, True, False])) == {"a": 1.0, "b": 1 / 3}


def test_many_thresholds_cost_little_more_than_one() -> None:
    step = configs.FineWebConfig().build()
    columns, sizes = make_columns(step, 200_000)

    def seconds(count: int) -> float:
        begin = time.process_time()
        curve(step, Signals(columns, sizes), "max_newlines", np.linspace(0, 1, count).tolist())
        return time.process_time() - begin

    seconds(1)
    assert seconds(20) < 20 * seconds(1)
