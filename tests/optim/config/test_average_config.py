"""The share of an average that a step replaces is a function of the clock."""

from typing import Any

import pytest

from hornbook.optim.config.average_config import MovingAverage, UniformAverage
from hornbook.optim.config.batch_schedule import Batches, NoRamp
from hornbook.optim.config.schedule_base import Axis

AXIS = Axis(10_000, NoRamp().batches(100))
RAMP = Axis(10_000, Batches((0, 500), (50, 100)))
Average = MovingAverage | UniformAverage


def test_a_decay_is_of_a_step_and_a_half_life_of_tokens() -> None:
    assert MovingAverage(decay=0.9).share(0, 100, AXIS) == pytest.approx(0.1)
    steps, tokens = (MovingAverage.model_validate({"half_life": text}) for text in ("4 steps", "400 tokens"))
    assert steps.share(0, 100, AXIS) == tokens.share(0, 100, AXIS) == pytest.approx(1 - 0.5**0.25)
    left = 1.0
    for before in range(0, 400, 50):  # smaller steps, as a ramp has them, leave as much
        left *= 1 - tokens.share(before, before + 50, RAMP)
    assert left == pytest.approx(0.5)


def test_a_mean_gives_every_token_the_same_weight() -> None:
    weights: list[float] = []
    for before, after in ((0, 50), (50, 150), (150, 250), (250, 450)):
        share = UniformAverage().share(before, after, RAMP)
        weights = [each * (1 - share) for each in weights] + [share]
    assert weights == pytest.approx([50 / 450, 100 / 450, 100 / 450, 200 / 450])


@pytest.mark.parametrize(
    "config", [MovingAverage.model_validate({"begin": "10%"}), UniformAverage.model_validate({"begin": "10 steps"})]
)
def test_before_it_begins_the_average_is_the_weights(config: Average) -> None:
    assert [config.share(before, before + 100, AXIS) for before in (0, 800, 900)] == [1, 1, 1]
    assert config.share(1100, 1200, AXIS) < 1


def test_a_step_over_the_beginning_replaces_all_of_a_mean() -> None:
    assert UniformAverage.model_validate({"begin": "1050 tokens"}).share(1000, 1100, AXIS) == 1


@pytest.mark.parametrize(
    ("values", "key"), [({"begin": "10001 tokens"}, "begin"), ({"half_life": "0 steps"}, "half_life")]
)
def test_what_does_not_fit_the_run_is_named(values: dict[str, Any], key: str) -> None:
    assert [name for name, _ in MovingAverage.model_validate(values).problems(AXIS)] == [key]
