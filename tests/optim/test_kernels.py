"""Updates in one pass on a CPU, beside the rules' functions of torch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from hornbook.optim import kernels
from hornbook.optim.build_optimizer import build_optimizer
from tests.optim.kinds import config_of, everything, same_bits

SHAPES = {"a": (37, 300), "b": (5, 1031), "experts": (3, 4, 7), "bias": (13,)}
ROLES = {name: "vector" if name == "bias" else "matrix" for name in SHAPES}
EVERY = pytest.mark.parametrize("kind", ["lion", "lamb", "schedule_free"])


def run(kind: str, steps: int = 20) -> dict[str, Tensor]:
    """Parameters and state after some steps; the third step has no gradient of one parameter."""
    generator = torch.Generator().manual_seed(0)
    named = {name: Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
    settings: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1}
    optimizer = build_optimizer(named, ROLES, config_of(kind, **settings))
    for number in range(steps):
        optimizer.set_learning_rate(0.02 * (1 - number / 40))
        for parameter in named.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.1**number
        if number == 2 and kind != "schedule_free":
            named["b"].grad = None
        optimizer.step()
    return everything(named, optimizer)


@EVERY
def test_steps_are_those_of_the_functions_of_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(kind)
    monkeypatch.setattr(kernels, "fits", lambda *_: False)
    for name, expected in run(kind).items():
        torch.testing.assert_close(found[name], expected, rtol=2e-5, atol=2e-6)


@EVERY
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(run(kind, 4))
    finally:
        torch.set_num_threads(before)
    assert kind == "lamb" or all(same_bits(each, found[0]) for each in found)
    for each in found:  # norms of LAMB are torch's sums
        assert all(torch.allclose(each[name], found[0][name], rtol=1e-5, atol=1e-6) for name in each)


def test_what_kernels_cannot_read_is_left_to_torch() -> None:
    plain = torch.zeros(4, 4)
    assert kernels.fits(plain, Parameter(plain))
    assert not any(kernels.fits(each) for each in (plain.double(), plain.bfloat16(), plain.to("meta"), plain[:, 1:]))
