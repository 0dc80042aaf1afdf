import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hornbook.optim.config.batch_schedule import Batches, NoRamp
from hornbook.optim.config.schedules import WSD, Constant, Cosine, Linear
from hornbook.settings.fields import Duration

TOTAL, BATCH = 100_000, 1_000
BATCHES = NoRamp().batches(BATCH)
KINDS = [Constant, Linear, Cosine, WSD]


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


@given(kind=st.sampled_from(KINDS), tokens=st.lists(st.integers(0, TOTAL), min_size=2, max_size=2))
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
