"""Schedule-Free against the package of its authors, the average that it is, and what a run evaluates and saves."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.schedule_free_config import ScheduleFree, ScheduleFreeSGD
from hornbook.optim.config.schedules import Cosine
from hornbook.optim.optimizer import Optimizer
from tests.parallel.trajectory import LAYOUTS, Run, perform, same_bits
from tests.ranks import RankServer

AnyForm = ScheduleFree | ScheduleFreeSGD
FORMS = [ScheduleFree(lr=0.02, weight_decay=0.1), ScheduleFreeSGD(lr=0.3, weight_decay=0.01)]
# 50 steps of `train` with the package schedulefree 1.4.1, after `eval()`:
# AdamWScheduleFreeReference([w], lr=0.02, weight_decay=0.1, warmup_steps=10),
# SGDScheduleFreeReference([w], lr=0.3, weight_decay=0.01, warmup_steps=10)
EVALUATED = {
    "schedule_free": [
        [0.1475391, -0.3271971, -0.7859813],
        [-0.5118892, 0.2193813, 0.7581357],
        [0.5928859, -0.1154378, -0.7138687],
        [-0.6623839, 0.003719, 0.6454632],
    ],
    "schedule_free_sgd": [
        [-0.0028474, -0.0191296, 0.0070739],
        [-0.0005941, -0.0002526, -0.0067422],
        [-0.0034693, -0.0008116, 0.0192723],
        [0.0021297, -0.0003214, -0.08118],
    ],
}


def make(config: AnyForm) -> tuple[Parameter, Optimizer]:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(3.0), indexing="ij")
    parameter = Parameter(torch.cos(1 + 3 * rows + columns))
    return parameter, build_optimizer({"w": parameter}, {"w": "matrix"}, config)


def take_step(parameter: Parameter, optimizer: Optimizer, step: int) -> None:
    """One of a warm-up of ten, or after it."""
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(3.0), indexing="ij")
    turned = torch.sin(1.3 * rows * (step + 1) + 0.7 * columns * columns * (step + 2))
    parameter.grad = turned + 0.3 * parameter.detach()
    optimizer.set_learning_rate(optimizer.config.lr * min((step + 1) / 10, 1.0))
    optimizer.step()


def train(config: AnyForm, steps: int) -> tuple[Parameter, Optimizer]:
    parameter, optimizer = make(config)
    for step in range(steps):
        take_step(parameter, optimizer, step)
    return parameter, optimizer


def state_of(optimizer: Optimizer, parameter: Parameter) -> dict[str, Tensor]:
    return optimizer.updates[0][1].state[parameter]


@pytest.mark.parametrize("config", FORMS)
def test_fifty_steps_are_those_of_its_authors(config: AnyForm) -> None:
    _, optimizer = train(config, 50)
    found = optimizer.evaluation_weights()["w"]
    torch.testing.assert_close(found, torch.tensor(EVALUATED[config.kind]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("config", FORMS)
def test_it_evaluates_the_average_of_z(config: AnyForm) -> None:
    """With weights lr_max^2, computed here in float64; and gradients are taken at (1 - b) z + b x."""
    parameter, optimizer = make(config)
    start, total, weights = parameter.detach().clone(), torch.zeros(4, 3, dtype=torch.float64), 0.0
    assert torch.equal(optimizer.evaluation_weights()["w"], start)
    for step in range(40):
        take_step(parameter, optimizer, step)
        z = state_of(optimizer, parameter)["z"].double()
        largest = config.lr * min((step + 1) / 10, 1.0)
        total, weights = total + largest**2 * z, weights + largest**2
        x = optimizer.evaluation_weights()["w"].double()
        torch.testing.assert_close(x, total / weights, rtol=0, atol=3e-6)
        torch.testing.assert_close(parameter.detach().double(), (1 - 0.9) * z + 0.9 * x, rtol=0, atol=1e-6)
    assert not torch.allclose(optimizer.evaluation_weights()["w"], parameter.detach(), atol=1e-3)


def test_the_first_step_is_known() -> None:
    """z moves by the rate, as Adam's first step, and x is z."""
    parameter, optimizer = make(ScheduleFree(lr=0.5, weight_decay=0.25))
    start = parameter.detach().clone()
    parameter.grad = torch.full((4, 3), -2.0)
    optimizer.step()
    expected = start * (1 - 0.5 * 0.25) + 0.5
    torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(optimizer.evaluation_weights()["w"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", FORMS)
def test_a_refused_step_changes_no_bit(config: AnyForm) -> None:
    parameter, optimizer = train(config, 3)
    before = {name: tensor.clone() for name, tensor in state_of(optimizer, parameter).items()}
    parameter.grad = torch.full((4, 3), torch.nan)
    optimizer.step(torch.tensor(1.0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(optimizer, parameter).items())


@pytest.mark.parametrize("config", FORMS)
def test_the_state_is_all_that_the_next_step_needs(config: AnyForm) -> None:
    """The model of a checkpoint is x; y is in the state, and reading it sets the parameter."""
    parameter, optimizer = train(config, 5)
    stored = {each.name: tensor.clone() for _, each, tensor in optimizer.state()}
    other, restored = make(config)
    with torch.no_grad():
        other.copy_(optimizer.evaluation_weights()["w"])
        for _, each, tensor in restored.state():
            tensor.copy_(stored[each.name])
    assert torch.equal(other, parameter)
    for step in (5, 6):
        take_step(parameter, optimizer, step)
        take_step(other, restored, step)
    assert torch.equal(other, parameter)


def test_y_takes_no_memory_beside_the_parameter() -> None:
    parameter, optimizer = make(ScheduleFree())
    assert state_of(optimizer, parameter)["y"].data_ptr() == parameter.data_ptr()
    assert ScheduleFree().state_bytes(1000) == 8000
    assert ScheduleFreeSGD().state_bytes(1000) == 4000


def test_a_rate_that_falls_is_refused() -> None:
    assert not list(ScheduleFree().problems())
    (found,) = ScheduleFree(schedule=Cosine()).problems()
    assert found[0] == "schedule.kind"
    assert 'set it to "constant"' in found[1]


@pytest.mark.parametrize("kind", ["schedule_free", "schedule_free_sgd"])
@pytest.mark.parametrize(("world", "layout"), [(2, "optimizer"), (4, "everything")])
def test_ranks_update_as_one_process_does(
    run_ranks: RankServer, tmp_path: Path, world: int, layout: str, kind: str
) -> None:
    """To the bit with exact sums of gradients."""
    run = Run(world, **LAYOUTS[layout], optimizer=kind, exact=True, steps=3, microbatches=4)
    expected = perform(run_ranks, run.alone, tmp_path / "alone")
    assert same_bits(perform(run_ranks, run, tmp_path / "ranks"), expected)
