"""State that another optimizer takes over: nothing is lost between kinds of Adam, and updates keep their size."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from hornbook.optim.config.optim import SGD, Adafactor, Adam, AdamW, Lion, Muon, RMSProp
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import StateTensor
from hornbook.optim.config.swap_config import carried_settings, rewarms
from hornbook.optim.swap import convert, direction
from hornbook.settings.fields import Number


class Strange(OptimizerConfig):
    kind: Literal["module:Strange"] = "module:Strange"
    lr: Number = 1e-3

    def state_tensors(self, shape: Any) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return (StateTensor("exp_avg"),)


SHAPE = (6, 4)


def new_state(rule: OptimizerConfig, shape: tuple[int, ...] = SHAPE) -> dict[str, Tensor]:
    return {each.name: torch.zeros(each.shape(shape)) for each in rule.state_tensors(shape)}


def adam_state() -> dict[str, Tensor]:
    """After some hundred gradients of different sizes."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(SHAPE, generator=generator) * 1e-3
    second = torch.rand(SHAPE, generator=generator) * 1e-4 + 1e-5
    return {"step": torch.tensor(300.0), "exp_avg": first, "exp_avg_sq": second}


def converted(old: OptimizerConfig, state: dict[str, Tensor], new: OptimizerConfig) -> dict[str, Tensor]:
    made = new_state(new)
    convert(old, state, new, made)
    return made


@pytest.mark.parametrize("kind", [Adam, SGD, Lion, RMSProp, Adafactor, Strange])
def test_a_rule_takes_over_its_own_state_whatever_its_settings(kind: type[Any]) -> None:
    state = {name: torch.rand(tensor.shape) for name, tensor in new_state(kind()).items()}
    made = converted(kind(), state, kind(lr=7.0))
    assert made.keys() == state.keys()
    assert all(torch.equal(made[name], state[name]) for name in made)


def test_between_kinds_of_adam_nothing_is_lost() -> None:
    state = adam_state()
    there = converted(AdamW(), state, Adam())
    back = converted(Adam(), there, AdamW())
    assert all(torch.equal(back[name], state[name]) and torch.equal(there[name], state[name]) for name in state)


@pytest.mark.parametrize("middle", [SGD(), Lion()])
def test_the_mean_gradient_goes_along_and_what_is_not_known_begins_anew(middle: OptimizerConfig) -> None:
    state = adam_state()
    there = converted(AdamW(), state, middle)
    again = converted(middle, there, Lion())
    torch.testing.assert_close(again["exp_avg"], state["exp_avg"])
    back = converted(middle, there, AdamW())
    assert all(not tensor.any() for tensor in back.values())


def test_sgd_begins_with_the_sum_that_its_momentum_would_have() -> None:
    """With a constant gradient g the buffer is g / (1 - momentum), and the mean of Adam g."""
    made = converted(AdamW(), adam_state(), SGD(momentum=0.8))
    torch.testing.assert_close(made["momentum_buffer"], adam_state()["exp_avg"] / 0.2)


def test_squares_become_means_of_rows_and_columns_and_their_product_again() -> None:
    state = adam_state()
    made = converted(AdamW(), state, Adafactor())
    assert torch.equal(made["exp_avg_sq_row"], state["exp_avg_sq"].mean(1))
    assert torch.equal(made["exp_avg_sq_col"], state["exp_avg_sq"].mean(0))
    assert made["step"] == 300
    product = torch.outer(torch.arange(1.0, 7), torch.arange(1.0, 5))
    made = converted(AdamW(), {**state, "exp_avg_sq": product}, Adafactor())
    torch.testing.assert_close(converted(Adafactor(), made, RMSProp())["square_avg"], product)


def test_a_rule_from_outside_begins_anew() -> None:
    assert not converted(AdamW(), adam_state(), Strange())["exp_avg"].any()
    assert rewarms("adamw", "module:Strange")
    assert not rewarms("module:Strange", "module:Strange")
    assert not rewarms("adamw", "adam")


def test_updates_keep_their_size() -> None:
    """Of Adam with this state a value changes by 0.2 or so times the rate, of Lion by 1 times a fifth of it."""
    old = AdamW(lr=1e-3, weight_decay=0.1)
    size = direction(old, adam_state())
    assert size is not None
    root = float(size.square().mean().sqrt())
    carried = carried_settings(old, Lion())
    assert carried["lr"] == pytest.approx(2e-4)
    assert carried["lr"] * carried["weight_decay"] == pytest.approx(1e-3 * 0.1)
    assert 0.5 <= carried["lr"] / (1e-3 * root) <= 2
    buffer = direction(SGD(), converted(old, adam_state(), SGD()))
    assert buffer is not None
    torch.testing.assert_close(buffer, adam_state()["exp_avg"] * 10)
    assert direction(Strange(), {"exp_avg": torch.ones(2)}) is None


def test_the_direction_is_that_of_adam() -> None:
    """With zero gradient decays, one step of torch's AdamW from this state is what `direction` says."""
    old, state, parameter = AdamW(lr=1.0, weight_decay=0.0), adam_state(), torch.nn.Parameter(torch.zeros(SHAPE))
    update = torch.optim.AdamW([parameter], lr=1.0, weight_decay=0.0, betas=(old.beta1, old.beta2), eps=old.eps)
    update.state[parameter] = {name: tensor.clone() for name, tensor in state.items()}
    # The gradient that leaves mean and mean square as they are.
    parameter.grad = state["exp_avg"].clone()
    expected = direction(old, state)
    update.step()
    assert expected is not None
    ratio = float((-parameter.detach()).norm() / expected.norm())
    assert ratio == pytest.approx(1, abs=0.03)  # the mean square falls by a twentieth of itself at most


def test_settings_that_every_optimizer_has_are_carried_over() -> None:
    old = AdamW.model_validate(
        {"lr": 1e-3, "clip": 0.3, "schedule": {"kind": "wsd", "warmup": "5 steps"}, "beta2": 0.9}
    )
    carried = carried_settings(old, SGD())
    assert carried["clip"] == {"kind": "norm", "limit": 0.3}
    assert carried["schedule"]["kind"] == "wsd"
    assert "lr" not in carried
    assert "beta2" not in carried
    assert carried_settings(old, Adam())["beta2"] == 0.9
    assert carried_settings(old, Adam())["lr"] == 1e-3
    assert "weight_decay" not in carried_settings(old, Adam())  # a term of its gradient, not a factor on weights


def test_muon_leaves_the_rest_to_adamw_as_it_was() -> None:
    old = AdamW(lr=1e-3, beta2=0.9, weight_decay=0.2)
    carried = carried_settings(old, Muon())
    assert (carried["lr"], carried["weight_decay"]) == (1e-3, 0.2)
    assert carried["rest"] == {"lr": 1e-3, "weight_decay": 0.2, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8}
    there = Muon.model_validate(carried)
    back = carried_settings(there, AdamW())
    assert {name: back[name] for name in ("lr", "weight_decay", "beta1", "beta2")} == {
        "lr": 1e-3,
        "weight_decay": 0.2,
        "beta1": 0.9,
        "beta2": 0.9,
    }
    made = converted(old, adam_state(), there)
    assert torch.equal(made["momentum_buffer"], adam_state()["exp_avg"])


def test_an_optimizer_with_a_schedule_of_its_own_keeps_it() -> None:
    assert "schedule" not in carried_settings(AdamW(), Adafactor())
    assert "schedule" in carried_settings(AdamW(), Lion())
