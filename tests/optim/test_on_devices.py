"""Every optimizer of the package on a GPU: the updates of the CPU, and a step that is refused changes no bit."""

import pytest
import torch
from torch.nn import Parameter

from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.optimizer import Optimizer
from tests.gpu import DEVICES
from tests.optim.kinds import CASES, IDS, ROLES, config_of, everything, make, same_bits


def moved(kind: str, more: dict, device: torch.device) -> tuple[dict[str, Parameter], Optimizer]:
    named, _ = make(config_of(kind, **more))
    there = {name: Parameter(each.detach().to(device)) for name, each in named.items()}
    return there, build_optimizer(there, ROLES, config_of(kind, **more))


def take(named: dict[str, Parameter], optimizer: Optimizer, seed: int, nonfinite: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
    optimizer.step(torch.tensor(nonfinite, device=next(iter(named.values())).device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "more"), CASES, ids=IDS)
def test_a_device_takes_the_steps_of_the_cpu(kind: str, more: dict, device: torch.device) -> None:
    (here, reference), (there, optimizer) = moved(kind, more, torch.device("cpu")), moved(kind, more, device)
    for number in range(4):
        take(here, reference, number, 0.0)
        take(there, optimizer, number, 0.0)
    before = everything(there, optimizer)
    take(there, optimizer, 9, 1.0)
    assert same_bits(before, everything(there, optimizer))
    for name, want in everything(here, reference).items():
        got = everything(there, optimizer)[name].cpu()
        assert torch.allclose(got.float(), want.float(), rtol=1e-4, atol=1e-6), name
