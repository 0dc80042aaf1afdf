import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hornbook.optim.config.batch_schedule import Batches, NoRamp
from hornbook.optim.config.cyclic_schedules import CosineRestarts, Cyclic, OneCycle
from hornbook.optim.config.schedule_base import Axis, ScheduleConfig
from hornbook.optim.config.schedules import (
    WSD,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    Piecewise,
    Polynomial,
    Power,
    Steps,
)
from hornbook.settings.fields import Duration

TOTAL, BATCH = 100_000, 1_000
BATCHES = NoRamp().batches(BATCH)
KINDS = [Constant, Linear, Cosine, WSD, InverseSqrt, Power, Exponential, Polynomial, CosineRestarts]
CONTINUED = {
    "warmup": "5000 tokens",
    "segments": [
        {"until": "30%", "to": 0.4, "shape": "cosine"},
        {"until": "80%", "to": 0.4},
        {"until": "85%", "to": 0.8, "shape": "sqrt"},
        {"until": "100%", "to": 0.01, "shape": "exponential"},
    ],
}
EVERY: list[ScheduleConfig] = [
    *(kind(warmup=Duration(amount=7_000, unit="tokens")) for kind in KINDS),
    WSD.model_validate({"decay": "30000 tokens", "shape": "cosine"}),
    InverseSqrt.model_validate({"hold": "9000 tokens", "cooldown": "20%"}),
    Exponential.model_validate({"every": "20000 tokens", "factor": 0.5, "floor": 0.3}),
    Steps.model_validate({"points": ["40%", "60%"]}),
    Steps.model_validate({"every": "15000 tokens", "amount": 0.2, "floor": 0.1}),
    CosineRestarts.model_validate({"cycles": 3, "shrink": 0.5}),
    CosineRestarts.model_validate({"points": ["50000 tokens"], "rewarm": "5000 tokens"}),
    Cyclic(),
    OneCycle(),
    Piecewise.model_validate(CONTINUED),
]
"""A schedule of every kind, in several forms."""


def warm(text: str) -> Duration:
    return Duration.model_validate(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["10 steps", "10000 tokens", "10%"])
def test_warmup_is_a_straight_line_without_a_step_at_zero(kind: type, text: str) -> None:
    schedule = kind(warmup=warm(text))
    factors = [schedule(step * BATCH, TOTAL, BATCHES) for step in range(10)]
    assert factors == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(), [1, 1, 1, 1, 1]),
        (Linear(), [1, 0.75, 0.5, 0.25, 0]),
        (Linear(floor=0.2), [1, 0.8, 0.6, 0.4, 0.2]),
        (Cosine(), [1, 0.1 + 0.45 * (1 + math.sqrt(0.5)), 0.55, 0.1 + 0.45 * (1 - math.sqrt(0.5)), 0.1]),
        (Cosine(floor=0), [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        (WSD(decay_share=0.5), [1, 1, 1, 1 - math.sqrt(0.5), 0]),
        (WSD(decay_share=0.5, shape="linear", floor=0.1), [1, 1, 1, 0.55, 0.1]),
    ],
)
def test_values_at_the_quarters(schedule: Constant, expected: list[float]) -> None:
    assert [schedule(TOTAL * i // 4, TOTAL, BATCHES) for i in range(5)] == pytest.approx(expected)


@given(
    kind=st.sampled_from(KINDS),
    warmup=st.sampled_from(["0 tokens", "3 steps", "7%", "100%", "500000 tokens"]),
    tokens=st.integers(0, 3 * TOTAL),
    batch=st.integers(1, TOTAL),
)
def test_factors_stay_between_zero_and_one(kind: type, warmup: str, tokens: int, batch: int) -> None:
    factor = kind(warmup=warm(warmup))(tokens, TOTAL, Batches((0,), (batch,)))
    assert 0 <= factor <= 1


@given(kind=st.sampled_from(KINDS[:-1]), tokens=st.lists(st.integers(0, TOTAL), min_size=2, max_size=2))
def test_no_schedule_rises_after_warmup(kind: type, tokens: list[int]) -> None:
    early, late = sorted(tokens)
    schedule = kind()
    assert schedule(late, TOTAL, BATCHES) <= schedule(early, TOTAL, BATCHES)


def test_a_longer_run_has_the_same_warmup_in_tokens() -> None:
    schedule = Cosine(warmup=warm("8000 tokens"))
    assert schedule(3000, TOTAL, BATCHES) == schedule(3000, 10 * TOTAL, BATCHES)


def test_past_the_end_the_floor_holds() -> None:
    assert Linear(floor=0.3)(2 * TOTAL, TOTAL, BATCHES) == pytest.approx(0.3)


@pytest.mark.parametrize("text", ["0 tokens", "0 steps", "0%"])
def test_no_warmup_begins_at_the_peak(text: str) -> None:
    assert Constant(warmup=warm(text))(0, TOTAL, BATCHES) == 1


@pytest.mark.parametrize("values", [{"floor": 1.1}, {"floor": -0.1}, {"warmup": "x"}])
def test_limits(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Cosine.model_validate(values)


def at(schedule: ScheduleConfig, *tokens: float, total: int = TOTAL) -> list[float]:
    return [schedule(each, total, BATCHES) for each in tokens]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (WSD.model_validate({"decay": "50%", "shape": "cosine"}), [1, 1, 1, 0.5, 0]),
        (InverseSqrt.model_validate({"hold": "25000 tokens"}), [1, 1, 0.5**0.5, 3**-0.5, 0.5]),
        (Power.model_validate({"hold": "25%", "exponent": 1}), [1, 1, 1 / 2, 1 / 3, 1 / 4]),
        (InverseSqrt.model_validate({"hold": "25%", "cooldown": "50%"}), [1, 1, 0.5**0.5, 3**-0.5 / 2, 0]),
        (Exponential(), [1, 10**-0.25, 10**-0.5, 10**-0.75, 0.1]),
        (Exponential.model_validate({"every": "25%", "factor": 0.5, "floor": 0.2}), [1, 0.5, 0.25, 0.2, 0.2]),
        (Polynomial(power=2, floor=0.2), [1, 0.2 + 0.8 * 0.5625, 0.4, 0.25, 0.2]),
        (Steps.model_validate({"points": ["25%", "70%"]}), [1, 0.1, 0.1, 0.01, 0.01]),
        (Steps.model_validate({"every": "25%", "amount": 0.3, "floor": 0.15}), [1, 0.7, 0.4, 0.15, 0.15]),
        (CosineRestarts(cycles=2, floor=0), [1, 0.5, 1, 0.5, 0]),
        (CosineRestarts(cycles=2, floor=0, shrink=0.5), [1, 0.5, 0.5, 0.25, 0]),
        (CosineRestarts.model_validate({"points": ["50%"], "rewarm": "25%"}), [1, 0.55, 0.1, 1, 0.1]),
        (Cyclic.model_validate({"every": "50%", "floor": 0.2}), [0.2, 1, 0.2, 1, 0.2]),
        (OneCycle(rise=0.5, start=0.2, floor=0, shape="linear"), [0.2, 0.6, 1, 0.5, 0]),
        (
            Piecewise.model_validate({"segments": [{"until": "25%", "to": 0.2}, {"until": "75%", "to": 0.6}]}),
            [1, 0.2, 0.4, 0.6, 0.6],
        ),
    ],
)
def test_values_at_the_quarters_of_the_others(schedule: ScheduleConfig, expected: list[float]) -> None:
    assert at(schedule, *(TOTAL * i // 4 for i in range(5))) == pytest.approx(expected)


def test_a_warmup_may_begin_above_zero() -> None:
    schedule = Cosine.model_validate({"warmup": "10 steps", "warmup_start": 0.5})
    assert at(schedule, *(step * BATCH for step in range(10))) == pytest.approx(
        [0.55 + 0.05 * step for step in range(10)]
    )


@pytest.mark.parametrize("schedule", EVERY, ids=lambda schedule: schedule.kind)
@given(
    tokens=st.integers(0, TOTAL),
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=3),
    ramped=st.integers(1, TOTAL),
)
def test_a_ramp_leaves_the_curve_over_tokens(
    schedule: ScheduleConfig, tokens: int, sizes: list[int], ramped: int
) -> None:
    """After the warm-up, whose value belongs to the end of a step, the batches make no difference at all."""
    after = max(tokens, 7_000)
    firsts = tuple(ramped * number for number in range(len(sizes)))
    assert schedule(after, TOTAL, Batches(firsts, tuple(sizes))) == schedule(after, TOTAL, BATCHES)


@pytest.mark.parametrize("schedule", EVERY, ids=lambda schedule: schedule.kind)
def test_nothing_depends_on_the_calls_before(schedule: ScheduleConfig) -> None:
    """A resume begins anywhere: in any order, and in a copy that was written and read, the values are the same."""
    clock = [step * BATCH for step in range(TOTAL // BATCH)]
    along = at(schedule, *clock)
    again = type(schedule).model_validate(schedule.model_dump(mode="json"))
    assert [again(tokens, TOTAL, BATCHES) for tokens in reversed(clock)] == along[::-1]


@pytest.mark.parametrize(
    "schedule", [s for s in EVERY if s.kind not in ("step", "cosine_restarts")], ids=lambda s: s.kind
)
def test_no_jump_at_a_joint(schedule: ScheduleConfig) -> None:
    """Steps of a 10,000th of the run; the steepest kind is 1 - sqrt, of slope 1 / (2 sqrt(x)) at its beginning."""
    fine = Batches((0,), (TOTAL // 10_000,))
    values = [schedule(tokens, TOTAL, fine) for tokens in range(0, TOTAL + 1, TOTAL // 10_000)]
    assert max(abs(one - other) for one, other in pairwise(values)) < 0.025


def test_a_rewarmed_cycle_does_not_jump() -> None:
    schedule = CosineRestarts.model_validate({"points": ["50%"], "rewarm": "5%"})
    values = at(schedule, *range(0, TOTAL + 1, 10))
    assert max(abs(one - other) for one, other in pairwise(values)) < 0.003


@pytest.mark.parametrize("shape", ["sqrt", "linear", "cosine"])
def test_decays_of_different_length_share_the_stable_part_to_the_bit(shape: str) -> None:
    """From one trunk: until the first begins to decay, both are the trunk, whatever the length of the run."""
    warm = {"warmup": "7 steps", "kind": "wsd", "shape": shape}
    short, long = (WSD.model_validate({**warm, "decay": decay}) for decay in ("10000 tokens", "40000 tokens"))
    trunk = Constant.model_validate({"warmup": "7 steps"})
    shared = range(0, 60_001, BATCH)
    assert at(short, *shared, total=70_000) == at(long, *shared) == at(trunk, *shared, total=10**9)
    assert at(short, 61_000, total=70_000) < at(long, 61_000)


def test_a_run_that_goes_on_after_its_cosine_keeps_its_steps() -> None:
    """Re-warm and re-decay: a cycle is added behind the run's end, and the first is the same to the bit."""
    first = Cosine.model_validate({"warmup": "5 steps"})
    both = CosineRestarts.model_validate({"warmup": "5 steps", "points": [f"{TOTAL} tokens"], "rewarm": "5000 tokens"})
    clock = range(0, TOTAL, BATCH)
    assert at(first, *clock) == at(both, *clock, total=2 * TOTAL)
    assert at(both, TOTAL, TOTAL + 2_500, TOTAL + 5_000, 2 * TOTAL, total=2 * TOTAL) == pytest.approx(
        [0.1, 0.55, 1, 0.1]
    )


def test_infinite_rates_are_segments() -> None:
    """Ibrahim et al. 2024, section 4: a cosine to a constant rate, held, then an exponential fall at the end."""
    schedule = Piecewise.model_validate(
        {
            "warmup": "1000 tokens",
            "segments": [
                {"until": "41000 tokens", "to": 0.5, "shape": "cosine"},
                {"until": "80000 tokens", "to": 0.5},
                {"until": "100000 tokens", "to": 0.05, "shape": "exponential"},
            ],
        }
    )
    cosine = 0.5 + 0.25 * (1 + math.cos(math.pi * 0.25))
    expected = [cosine, 0.75, 0.5, 0.5, 0.5, 0.5 * 0.1**0.5, 0.05]
    assert at(schedule, 11_000, 21_000, 41_000, 60_000, 80_000, 90_000, TOTAL) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "key", "text"),
    [
        (
            Cosine.model_validate({"warmup": "101 steps"}),
            "warmup",
            "it ends after 101,000 tokens, and the run ends after",
        ),
        (Steps(), "points", r"give optim\.schedule\.points or optim\.schedule\.every"),
        (Steps.model_validate({"points": ["60%", "40%"]}), "points", "must rise"),
        (Steps.model_validate({"points": ["10%"], "warmup": "10%"}), "points", "must rise from the end of the warm-up"),
        (Steps.model_validate({"points": ["10%", "200000 tokens"]}), "points", "lengthen the run"),
        (Steps.model_validate({"every": "0 tokens"}), "every", "shorter than a token"),
        (Exponential.model_validate({"every": "0 steps"}), "every", "shorter than a token"),
        (Cyclic.model_validate({"every": "0%"}), "every", "shorter than a token"),
        (InverseSqrt.model_validate({"timescale": "0 steps"}), "timescale", "shorter than a token"),
        (InverseSqrt.model_validate({"hold": "150000 tokens"}), "hold", "shorten"),
        (Power.model_validate({"cooldown": "99%", "warmup": "2%"}), "cooldown", "shorten"),
        (WSD.model_validate({"decay": "99%", "warmup": "2%"}), "decay", "longer than the run"),
        (CosineRestarts.model_validate({"cycles": 2, "points": ["10%"]}), "points", "one of the two"),
        (CosineRestarts.model_validate({"cycles": 200_000}), "cycles", "no length"),
        (CosineRestarts.model_validate({"cycles": 4, "rewarm": "26%"}), "rewarm", "longer than a cycle"),
        (CosineRestarts.model_validate({"points": ["10%", "30%"]}), "", ""),
        (
            Piecewise.model_validate({"segments": [{"until": "90%", "to": 1}, {"until": "80%", "to": 0}]}),
            "segments",
            "rise",
        ),
        (
            Piecewise.model_validate({"segments": [{"until": "90%", "to": 0, "shape": "exponential"}]}),
            "segments.0.to",
            "never reaches",
        ),
    ],
)
def test_what_does_not_fit_the_run_is_named(schedule: ScheduleConfig, key: str, text: str) -> None:
    found = list(schedule.problems(Axis(TOTAL, BATCHES)))
    assert [name for name, _ in found] == ([key] if key else [])
    if key:
        assert re.search(text, found[0][1])


def test_a_last_step_that_is_not_whole_counts_as_one() -> None:
    """A run of 12 steps whose last is smaller may warm up over 12 steps."""
    axis = Axis(11_500, BATCHES)
    assert not list(Constant.model_validate({"warmup": "12 steps"}).problems(axis))
    assert list(Constant.model_validate({"warmup": "13 steps"}).problems(axis))
