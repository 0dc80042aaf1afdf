"""The verdict on curves of known law, and no stop where the loss will fall again."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hornbook.evals.config import Converged, Patience
from hornbook.optim.config.batch_schedule import NoRamp
from hornbook.optim.config.schedules import WSD, Constant
from hornbook.run.doctor.convergence import constant_part, convergence, fit
from hornbook.run.ledger.training_length import TrainingLength
from hornbook.run.observe.early_stop import EarlyStop, Losses, why_stop

BATCH, COUNT = 1000, 100
tokens = np.arange(1, COUNT + 1) * BATCH
NOISE = np.random.default_rng(11).normal(0, 1, COUNT)


PHASE = np.arange(COUNT) % 25 / 25
RESTARTS = 1e-3 * (0.1 + 0.45 * (1 + np.cos(np.pi * PHASE)))
RESTARTED = 2 + 2 * (tokens / BATCH) ** -0.4 + 300 * RESTARTS + 0.001 * NOISE
"""Loss of four cosines: it rises by 0.27 nats with each restart of the rate."""


def law(floor: float, factor: float, exponent: float) -> np.ndarray:
    """Losses with 0.001 of noise; `factor` at the first evaluation."""
    return floor + factor * (tokens / BATCH) ** -exponent + 0.001 * NOISE


@pytest.mark.parametrize("exponent", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("floor", [1.5, 3.0])
def test_a_known_floor_and_gain_are_found(floor: float, exponent: float) -> None:
    found = fit(tokens[12:].astype(float), law(floor, 2.0, exponent)[12:])
    gain = 2.0 * COUNT**-exponent * (1 - 1.1**-exponent)
    assert found.low <= gain <= found.high
    assert found.gain == pytest.approx(gain, rel=0.35, abs=3e-4)
    assert found.floor == pytest.approx(floor, abs=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_holds_the_gain_in_nearly_all_draws(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.002, COUNT)
    found = fit(tokens[12:].astype(float), (2 + 3 * (tokens / BATCH) ** -0.4 + noise)[12:])
    gain = 3 * COUNT**-0.4 * (1 - 1.1**-0.4)
    assert found.low - 2e-3 <= gain <= found.high + 2e-3


def test_the_interval_holds_the_gain_where_neighbouring_losses_are_alike() -> None:
    """By the spread of independent noise a third of the intervals would hold it, of the 90 % that they promise."""
    draw, x = np.random.default_rng(1), np.linspace(1 / 8, 1, 50)
    held = 0
    for _ in range(40):
        noise = draw.normal(0, 0.02 * (1 - 0.9**2) ** 0.5, 250)
        for step in range(1, len(noise)):
            noise[step] += 0.9 * noise[step - 1]
        found = fit(x, 2 + 0.4 * x**-0.3 + noise[200:])
        held += found.low <= 0.4 * (1 - 1.1**-0.3) <= found.high
    assert held / 40 > 0.7


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        (law(2.0, 4.0, 0.3), "worth it"),
        (law(2.0, 4.0, 2.0), "converged"),
        (law(2.0, 1.0, 1.0) + np.maximum(tokens / BATCH - 60, 0) * 0.02, "diverging"),
    ],
)
def test_verdicts_at_a_constant_rate(loss: np.ndarray, verdict: str) -> None:
    assert convergence(tokens, loss, np.full(COUNT, 1e-3)).verdict == verdict


def test_a_rise_beside_a_falling_training_loss_is_overfitting() -> None:
    loss = law(2.0, 1.0, 1.0) + np.maximum(tokens / BATCH - 60, 0) * 0.02
    assert convergence(tokens, loss, np.full(COUNT, 1e-3), law(1.0, 2.0, 0.3)).verdict == "overfitting"


def test_what_rises_within_its_noise_neither_diverges_nor_overfits() -> None:
    level = 2.0 + 2.0 * np.exp(-tokens / BATCH / 5) + 0.1 * NOISE
    verdicts = {convergence(tokens[:count], level[:count], np.full(count, 1e-3)).verdict for count in range(40, 101, 4)}
    assert not verdicts & {"diverging", "overfitting"}


def test_the_rise_that_a_restart_of_the_rate_brings_is_none_of_the_run() -> None:
    found = convergence(tokens[:54], RESTARTED[:54], RESTARTS[:54])
    assert found.verdict == "unknown", "and peaks of the rate are no constant part"
    higher = np.where(tokens > 55 * BATCH, 3.0, RESTARTED)
    assert convergence(tokens[:60], higher[:60], RESTARTS[:60]).verdict == "diverging"


def test_a_constant_rate_below_the_peak_is_judged_too() -> None:
    """An infinite schedule: from the peak to a constant rate, at which the loss has converged."""
    rate = 1e-3 * (0.4 + 0.3 * (1 + np.cos(np.pi * np.minimum(tokens / BATCH / 30, 1))))
    loss = 2 + 2 * np.exp(-tokens / BATCH / 5) + 100 * rate + 0.001 * NOISE
    found = convergence(tokens, loss, rate)
    assert (found.verdict, found.tokens) == ("converged", tokens[-1])


@pytest.mark.parametrize(
    ("rate", "part"),
    [
        (np.full(40, 1.0), (0, 40)),
        (np.r_[np.linspace(0.1, 0.9, 9), np.ones(60), np.linspace(0.9, 0.1, 31)], (9, 69)),
        (np.r_[np.ones(50), np.full(30, 0.4)], (50, 80)),
        (np.r_[np.ones(50), np.full(20, 0.4)], (50, 70)),
        (np.r_[np.ones(50), np.full(16, 0.4)], (0, 50)),
        (1 + np.cos(np.linspace(0, np.pi, 100)), (0, 0)),
        (np.r_[np.ones(20), np.linspace(0.9, 0.1, 80)], (0, 0)),
        (np.ones(7), (0, 0)),
    ],
    ids=["constant", "wsd", "step", "a quarter", "less than a quarter", "cosine", "short", "few"],
)
def test_the_constant_part_of_a_rate(rate: np.ndarray, part: tuple[int, int]) -> None:
    assert constant_part(rate) == part


def test_nothing_is_said_of_a_rate_that_is_lowered_from_the_start() -> None:
    assert convergence(tokens, law(2.0, 4.0, 0.3), np.linspace(1, 0.1, COUNT)).verdict == "unknown"


@pytest.mark.parametrize(
    ("newest", "verdict"),
    [
        ([np.nan] * 3, "diverging"),
        ([np.inf, np.nan, 3.0], "diverging"),
        ([3.0, 3.0, np.nan], "diverging"),
        ([3.0, np.nan, 2.99], "worth it"),
    ],
)
def test_a_run_whose_newest_losses_are_not_finite_diverges(newest: list[float], verdict: str) -> None:
    loss = np.concatenate([np.linspace(4, 3, 9), newest])
    found = convergence(tokens[:12], loss, np.full(12, 1e-3), loss)
    assert found.verdict == verdict
    assert verdict != "diverging" or (found.tokens, found.floor) == (tokens[11], None)


def test_no_loss_and_one_loss_are_judged_too() -> None:
    empty = np.empty(0)
    assert convergence(tokens[:0], empty, empty).verdict == "unknown"
    assert convergence(tokens[:1], np.array([3.0]), np.array([1e-3])).verdict == "unknown"
    assert convergence(tokens[:2], np.array([np.nan, 3.0]), np.full(2, 1e-3)).verdict == "unknown"


@pytest.mark.parametrize("seed", range(5))
def test_no_floor_below_zero_is_told_and_the_gain_is_right(seed: int) -> None:
    """5 - 0.5 ln D falls for ever: its fit has a floor of some -5 nats."""
    noise = np.random.default_rng(seed).normal(0, 0.01, COUNT)
    found = convergence(tokens, 5 - 0.5 * np.log(tokens / BATCH) + noise, np.full(COUNT, 1e-3))
    assert (found.verdict, found.floor) == ("worth it", None)
    assert found.text.endswith("; the losses show no floor yet")
    assert found.gain == pytest.approx(0.5 * np.log(1.1), rel=0.1)


# ---- stopping


def stops_at(loss: np.ndarray, rate: np.ndarray, config: Any, first: int = COUNT // 2, every: int = 1) -> int | None:
    """The first evaluation from `first` on after which the run would end, of all or of every second, third, ..."""
    found = Losses()
    for number in range(COUNT):
        found.add(number + 1, int(tokens[number]), float(loss[number]), float(rate[number]), float(loss[number]))
        if number + 1 >= first and (number + 1 - first) % every == 0 and why_stop(config, found):
            return number + 1
    return None


CONSTANT_RATE = np.full(COUNT, 1e-3)
PLATEAU = np.where(tokens < 40 * BATCH, 4.0, 2.0 + 2.0 * (np.maximum(tokens - 39 * BATCH, BATCH) / BATCH) ** -0.5)
DECAY = np.where(tokens < 80 * BATCH, 1.0, 0.2) * 1e-3
DROP = law(2.5, 3.0, 0.4) - np.maximum(tokens / BATCH - 80, 0) * 0.01


@pytest.mark.parametrize(
    ("loss", "rate"),
    [
        (law(2.0, 4.0, 0.3), CONSTANT_RATE),
        (PLATEAU + 0.001 * NOISE, CONSTANT_RATE),
        (DROP, DECAY),
        (np.where(tokens < 20 * BATCH, 6.0, law(2.0, 4.0, 0.3)), np.minimum(tokens / BATCH / 20, 1) * 1e-3),
        (law(2.0, 2.0, 0.4) + 0.1 * NOISE, CONSTANT_RATE),
        (RESTARTED, RESTARTS),
    ],
    ids=["falling", "plateau-then-drop", "decay", "warm-up", "noise", "restarts"],
)
def test_a_run_whose_loss_will_fall_is_not_stopped(loss: np.ndarray, rate: np.ndarray) -> None:
    assert stops_at(loss, rate, Converged(), every=2) is None


def test_a_converged_run_and_a_rising_one_are_stopped() -> None:
    assert stops_at(law(2.0, 4.0, 2.0), CONSTANT_RATE, Converged()) == COUNT // 2
    rising = law(2.0, 1.0, 1.0) + np.maximum(tokens / BATCH - 60, 0) * 0.02
    at = stops_at(rising, CONSTANT_RATE, Converged(gain=1e-9))
    assert at is not None
    assert 60 < at < 75


def test_patience_counts_evaluations_without_a_new_least() -> None:
    loss = np.concatenate([np.linspace(5, 3, 60), np.full(40, 3.1)])
    assert stops_at(loss, CONSTANT_RATE, Patience(evaluations=7)) == 67
    assert stops_at(loss, CONSTANT_RATE, Patience(evaluations=41)) is None


def test_a_run_that_goes_back_forgets_what_came_after() -> None:
    found = Losses()
    for step in (1, 2, 3, 2):
        found.add(step, step * 10, float(step), 1.0, 1.0)
    assert (found.step, found.tokens) == ([1, 2], [10, 20])


@pytest.mark.parametrize(("schedule", "rest"), [(Constant(), 1), (WSD(), 5)])
def test_the_rest_of_the_schedule_happens_in_what_is_left(schedule: Any, rest: int) -> None:
    """A run of 100 steps that has converged after 50 goes on for a tenth of those, if its rate is yet to be lowered."""
    job: Any = SimpleNamespace(output=SimpleNamespace(is_rank0=False))
    stop = EarlyStop(Patience(evaluations=3), schedule, job, 0)
    length = TrainingLength(COUNT * BATCH, NoRamp().batches(BATCH), 10)
    found: list[int] = []
    at: Any = None
    for step in range(1, 51):
        stop.listen({"kind": "evaluation", "all": {"loss": 3.0}})
        at = SimpleNamespace(step=step, tokens=step * BATCH, loss=3.0, lr=1.0)
        found.append(stop.tokens_in_time(at, length))
    assert found == [length.tokens] * 49 + [(50 + rest) * BATCH]
    assert "no validation loss below 3.0000" in stop.evidence(at, length)["reason"]
