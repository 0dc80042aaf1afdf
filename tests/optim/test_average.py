"""Averages of weights: closed forms, and the weights themselves are left alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hornbook.optim.average import WeightAverage, held_weights
from hornbook.optim.config.average_config import MovingAverage, UniformAverage
from hornbook.optim.config.batch_schedule import NoRamp
from hornbook.optim.config.schedule_base import Axis

AXIS = Axis(10_000, NoRamp().batches(100))


def along(config: Any, steps: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[Tensor]]:
    """(the average after that many steps, the weights from before the first one on)."""
    weights = [torch.randn(5, generator=torch.Generator().manual_seed(step)).to(dtype) for step in range(steps + 1)]
    parameter = nn.Parameter(weights[0].clone())
    average = WeightAverage(config, {"w": parameter}, AXIS)
    average.restart()
    for step in range(1, steps + 1):
        parameter.data.copy_(weights[step])
        average.update(100 * (step - 1), 100 * step)
    return average.tensors["w"], weights


def test_a_moving_average_has_the_closed_form() -> None:
    found, weights = along(MovingAverage(decay=0.8), 12)
    expected = 0.8**12 * weights[0] + sum(0.2 * 0.8 ** (12 - k) * weights[k] for k in range(1, 13))
    torch.testing.assert_close(found, expected)


def test_a_mean_is_the_mean_since_its_beginning() -> None:
    torch.testing.assert_close(along(UniformAverage(), 9)[0], torch.stack(along(UniformAverage(), 9)[1][1:]).mean(0))
    found, weights = along(UniformAverage.model_validate({"begin": "4 steps"}), 9)
    torch.testing.assert_close(found, torch.stack(weights[5:]).mean(0))


def test_it_is_the_weights_until_it_begins() -> None:
    found, weights = along(MovingAverage.model_validate({"begin": "9 steps"}), 9)
    assert torch.equal(found, weights[9])


def test_constant_weights_stay_to_the_bit() -> None:
    parameter = nn.Parameter(torch.randn(100))
    average = WeightAverage(MovingAverage(decay=0.99), {"w": parameter}, AXIS)
    average.restart()
    for step in range(50):
        average.update(100 * step, 100 * (step + 1))
    assert torch.equal(average.tensors["w"], parameter)


def test_weights_in_bfloat16_are_averaged_in_float32() -> None:
    found, weights = along(UniformAverage(), 8, torch.bfloat16)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.stack([each.float() for each in weights[1:]]).mean(0))


def test_other_weights_are_held_and_put_back_to_the_bit_after_an_error_too() -> None:
    own, values = torch.tensor([1.0, -0.0, 3e-45]), torch.tensor([4.0, 5.0, 6.0])
    parameter = nn.Parameter(own.clone())

    def fail() -> None:
        with held_weights({"w": parameter}, {"w": values}):
            assert torch.equal(parameter, values)
            assert torch.is_grad_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(parameter.detach().view(torch.int32), own.view(torch.int32))
    assert torch.equal(values, torch.tensor([4.0, 5.0, 6.0]))
