"""Moments to named tensors and back."""

import pytest
import torch
from torch.nn import Parameter

from hornbook.errors import IntegrityError
from hornbook.optim.build import build_optimizer, set_learning_rate
from hornbook.optim.config.optim import AdamW
from hornbook.optim.moments import load_moments, read_moments


def make(config: AdamW | None = None) -> tuple[dict[str, Parameter], torch.optim.Optimizer]:
    torch.manual_seed(0)
    named = {"a.weight": Parameter(torch.randn(4, 3)), "a.bias": Parameter(torch.randn(4))}
    return named, build_optimizer(named, {"a.weight": "matrix", "a.bias": "vector"}, config or AdamW())


def step(named: dict[str, Parameter], optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def test_a_loaded_optimizer_goes_on_bit_for_bit() -> None:
    named, optimizer = make()
    step(named, optimizer, 1)
    stored = {name: tensor.clone() for name, tensor in read_moments(optimizer).items()}
    weights = {name: parameter.detach().clone() for name, parameter in named.items()}
    step(named, optimizer, 2)

    again, other = make()
    load_moments(other, stored)
    with torch.no_grad():
        for name, parameter in again.items():
            parameter.copy_(weights[name])
    step(again, other, 2)
    for name, parameter in again.items():
        assert torch.equal(parameter, named[name])
    for name, tensor in read_moments(other).items():
        assert torch.equal(tensor, read_moments(optimizer)[name])


def test_hyper_parameters_come_from_the_configuration_not_from_the_file() -> None:
    named, optimizer = make(AdamW(lr=0.5, beta1=0.5))
    step(named, optimizer, 1)
    _, other = make(AdamW(lr=0.25, beta1=0.75))
    load_moments(other, read_moments(optimizer))
    assert [group["lr"] for group in other.param_groups] == [0.25, 0.25]
    assert other.param_groups[0]["betas"] == (0.75, 0.95)
    set_learning_rate(other, 0.1)
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.1]


def test_what_does_not_fit_is_refused() -> None:
    _, optimizer = make()
    stored = dict(read_moments(optimizer))
    with pytest.raises(IntegrityError, match=r"a\.bias\.exp_avg is missing"):
        load_moments(optimizer, {name: t for name, t in stored.items() if name != "a.bias.exp_avg"})
    with pytest.raises(IntegrityError, match="b is not of this model"):
        load_moments(optimizer, stored | {"b": torch.zeros(1)})
    with pytest.raises(IntegrityError, match=r"a\.bias\.exp_avg has shape \[3\], not \[4\]"):
        load_moments(optimizer, stored | {"a.bias.exp_avg": torch.zeros(3)})
