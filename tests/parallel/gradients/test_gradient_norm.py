"""Loss scaling: the trajectory of torch's GradScaler, and a floor under it."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hornbook.parallel.gradients import gradient_norm as gradients
from hornbook.parallel.gradients.gradient_norm import CEILING, FLOOR, GROWTH_STEPS, Scaler, power_below

RUNS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=12)
"""Alternately so many good steps, so many bad."""


def trajectory_of_torch(applied: list[bool], growth_steps: int) -> list[float]:
    scaler = torch.amp.GradScaler("cpu", growth_interval=growth_steps)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    weight, scales = optimizer.param_groups[0]["params"][0], []
    for good in applied:
        scaler.scale(torch.zeros(()))
        weight.grad = torch.tensor([1.0 if good else float("inf")])
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def trajectory(applied: list[bool]) -> list[float]:
    scaler, scales = Scaler(), []
    for good in applied:
        scaler.update(applied=good)
        scales.append(scaler.scale)
    return scales


@given(RUNS)
def test_the_trajectory_is_that_of_torchs_grad_scaler(runs: list[tuple[int, int]]) -> None:
    applied = [good for count, bad in runs for good in [True] * count + [False] * bad][:60]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "GROWTH_STEPS", 5)
        found = trajectory(applied)
    expected = trajectory_of_torch(applied, 5)
    lowest = next((i for i, scale in enumerate(expected) if scale < FLOOR), len(expected))
    assert found[:lowest] == expected[:lowest]


def test_the_defaults_are_those_of_torch() -> None:
    scaler = torch.amp.GradScaler("cpu")
    assert Scaler().scale == scaler.get_scale()
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2.0, 0.5)
    assert scaler.get_growth_interval() == GROWTH_STEPS


@pytest.mark.parametrize(
    ("factor", "power"), [(0.3, 1.0), (1.0, 1.0), (1.99, 1.0), (2.0, 2.0), (2.0**127, 2.0**127), (640.5, 512.0)]
)
def test_the_power_of_two_below(factor: float, power: float) -> None:
    assert power_below(factor) == power


def test_the_scale_stays_between_floor_and_ceiling() -> None:
    scaler = Scaler()
    assert not scaler.spent
    for _ in range(16):
        assert not scaler.spent
        scaler.update(applied=False)
    assert (scaler.scale, scaler.spent) == (FLOOR, True)
    scaler.update(applied=False)
    assert (scaler.scale, scaler.spent) == (FLOOR, True)
    scaler.load({"scale": CEILING, "good_steps": GROWTH_STEPS - 1})
    scaler.update(applied=True)
    assert scaler.scale == CEILING
    assert torch.isfinite(torch.tensor(scaler.scale, dtype=torch.float32))


@given(RUNS, RUNS)
def test_a_state_saved_as_json_goes_on_alike(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    def drive(scaler: Scaler, runs: list[tuple[int, int]]) -> None:
        for good, bad in runs:
            for applied in [True] * (170 * good) + [False] * bad:
                scaler.update(applied=applied)

    one, other = Scaler(), Scaler()
    drive(one, before)
    other.load(json.loads(json.dumps(one.state())))
    drive(one, after)
    drive(other, after)
    assert one.state() == other.state()
