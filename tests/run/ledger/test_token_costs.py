"""What tokens cost along a run, where attention reaches farther as it goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.config.data import DataConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.run.ledger.token_costs import EVEN, Work, work_of

RISING = Work(((0, 0.5), (100, 0.75), (300, 1.0)))


def test_tokens_count_by_what_they_cost() -> None:
    assert RISING.between(0, 100) == 50
    assert RISING.between(50, 400) == 25 + 150 + 100
    assert RISING.between(400, 400) == 0
    assert EVEN.between(50, 400) == 350


@given(st.integers(0, 500), st.floats(0, 1000))
def test_tokens_of_work_are_the_inverse(first: int, work: float) -> None:
    assert RISING.between(first, first + RISING.tokens(first, work)) == pytest.approx(work)


def test_the_costs_are_those_of_a_model() -> None:
    model = ModelConfig.model_validate({"layers": 2, "width": 64, "heads": 2})
    ramp = {"kind": "linear", "start_tokens": 256, "over_tokens": 4096}
    work = work_of(model, DataConfig.model_validate({"sequence_ramp": ramp}), 512, 1024)
    firsts, costs = zip(*work.levels, strict=True)
    assert firsts[0] == 0
    assert len(costs) == 4
    assert list(costs) == sorted(costs)
    assert costs[0] < 0.8 < costs[-1] == 1.0
    assert work_of(model, DataConfig(), 512, 1024) == EVEN
