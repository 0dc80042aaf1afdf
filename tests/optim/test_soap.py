"""SOAP against the code of its authors, against AdamW where it has no basis, and the properties of its bases."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from hornbook.optim.build_optimizer import assign_rules, build_optimizer
from hornbook.optim.config.adamw_config import AdamWRule
from hornbook.optim.config.optim import SOAP
from hornbook.optim.optimizer import Optimizer
from hornbook.optim.soap import from_basis, refresh, to_basis
from tests.parallel.trajectory import LAYOUTS, Run, perform, same_bits
from tests.ranks import RankServer

# 20 steps of `train` with nikhilvyas/SOAP soap.py at a1e553530fde97d0e6b307d7c82ac6d38b072340:
# SOAP([w], lr=3e-3, weight_decay=0.0, max_precond_dim=...)
BOTH_SIDES = [
    [0.5253882, -0.4141581, -0.971873],
    [-0.6317584, 0.2900132, 0.944935],
    [0.7459352, -0.1520455, -0.8985494],
    [-0.826776, 0.0095495, 0.8494979],
]
"""max_precond_dim=10000"""
RIGHT_SIDE = [
    [0.5273649, -0.4116404, -0.9719227],
    [-0.6334709, 0.2960876, 0.9433575],
    [0.7403284, -0.150888, -0.8950098],
    [-0.8272684, 0.0050878, 0.8478177],
]
"""max_precond_dim=3"""


def make(config: SOAP, start: Tensor) -> tuple[Parameter, Optimizer]:
    parameter = Parameter(start.clone())
    return parameter, build_optimizer({"w": parameter}, {"w": "matrix"}, config)


def train(config: SOAP, steps: int) -> tuple[Parameter, Optimizer]:
    """Of a 4 x 3 matrix, on gradients that hang on it and on the step."""
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(3.0), indexing="ij")
    parameter, optimizer = make(config, torch.cos(1 + 3 * rows + columns))
    for step in range(steps):
        turned = torch.sin(1.3 * rows * (step + 1) + 0.7 * columns * columns * (step + 2))
        parameter.grad = turned + 0.3 * parameter.detach()
        optimizer.step()
    return parameter, optimizer


@pytest.mark.parametrize(("max_side", "expected"), [(10_000, BOTH_SIDES), (3, RIGHT_SIDE)])
def test_twenty_steps_are_those_of_its_authors(max_side: int, expected: list[list[float]]) -> None:
    parameter, _ = train(SOAP(weight_decay=0.0, max_side=max_side), 20)
    torch.testing.assert_close(parameter.detach(), torch.tensor(expected), rtol=0, atol=2e-6)


def test_without_a_basis_it_is_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, 4, generator=generator)
    own, optimizer = make(SOAP(lr=0.01, weight_decay=0.1, max_side=0), start)
    other = Parameter(start.clone())
    reference = torch.optim.AdamW([other], lr=0.01, betas=(0.95, 0.95), weight_decay=0.1)
    for _ in range(30):
        own.grad = torch.randn(5, 4, generator=generator)
        other.grad = own.grad.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(own.detach(), other.detach(), rtol=0, atol=5e-7)


def test_the_second_step_is_known() -> None:
    """The first gradient only makes the basis; the second moves by the rate in the basis, as Adam's first step."""
    start, first = torch.ones(2, 2), torch.diag(torch.tensor([1.0, 3.0]))
    own, optimizer = make(SOAP(lr=0.1, weight_decay=0.5), start)
    own.grad = first
    optimizer.step()
    assert torch.equal(own.detach(), start)
    own.grad = torch.diag(torch.tensor([2.0, -1.0]))
    optimizer.step()
    expected = start * (1 - 0.1 * 0.5) - 0.1 * torch.diag(torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(own.detach(), expected, rtol=0, atol=1e-6)


def test_the_first_moment_turns_with_the_basis() -> None:
    parameter, optimizer = train(SOAP(refresh_every=100), 8)
    state = optimizer.updates[0][1].state[parameter]
    before, bases = from_basis(state["exp_avg"], state), [state[f"{side}_basis"].clone() for side in ("left", "right")]
    refresh(state)
    torch.testing.assert_close(from_basis(state["exp_avg"], state), before, rtol=0, atol=1e-6)
    for side, old in zip(("left", "right"), bases, strict=True):
        basis = state[f"{side}_basis"]
        assert not torch.allclose(basis.abs(), old.abs(), atol=1e-4)
        torch.testing.assert_close(basis.mT @ basis, torch.eye(len(basis)), rtol=0, atol=1e-6)


def test_refreshed_bases_converge_to_the_eigenvectors() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
    square = root @ root.mT
    state = {"left": square, "left_basis": torch.eye(6, dtype=torch.float64).repeat(3, 1, 1)}
    state |= {
        name: torch.randn(3, 6, 4, generator=generator, dtype=torch.float64) for name in ("exp_avg", "exp_avg_sq")
    }
    for _ in range(300):
        refresh(state)
    found = to_basis(square, {"left_basis": state["left_basis"], "left": square}) @ state["left_basis"]
    expected = torch.diag_embed(torch.linalg.eigvalsh(square).flip(-1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_experts_are_matrices_of_their_own() -> None:
    """Square ones: the eigenvectors of a side that is longer than the rank of the first gradient are arbitrary."""
    stacked = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0))
    own, optimizer = make(SOAP(refresh_every=2), stacked)
    alone = [make(SOAP(refresh_every=2), each) for each in stacked]
    generator = torch.Generator().manual_seed(1)
    for _ in range(7):
        own.grad = torch.randn(3, 5, 5, generator=generator)
        for (parameter, single), each in zip(alone, own.grad, strict=True):
            parameter.grad = each.clone()
            single.step()
        optimizer.step()
    torch.testing.assert_close(own.detach(), torch.stack([each.detach() for each, _ in alone]), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("config", "shape", "expected"),
    [
        (SOAP(), (4, 6), {"left": (4, 4), "right": (6, 6)}),
        (SOAP(), (2, 4, 6), {"left": (2, 4, 4), "right": (2, 6, 6)}),
        (SOAP(max_side=5), (4, 6), {"left": (4, 4)}),
        (SOAP(one_sided=True), (4, 6), {"left": (4, 4)}),
        (SOAP(one_sided=True), (6, 4), {"right": (4, 4)}),
        (SOAP(one_sided=True), (4, 4), {"right": (4, 4)}),
        (SOAP(max_side=0), (4, 6), {}),
    ],
)
def test_squares_are_kept_for_the_sides_that_have_a_basis(
    config: SOAP, shape: tuple[int, ...], expected: dict[str, tuple[int, ...]]
) -> None:
    kept = {each.name: each.shape(shape) for each in config.state_tensors(shape) if each.extent in ("left", "right")}
    assert kept == expected | {f"{name}_basis": size for name, size in expected.items()}


def test_which_parameters_have_which_rule() -> None:
    roles = {"embedding": "embedding", "head": "head", "norm": "norm", "w": "matrix", "e": "matrix", "v": "matrix"}
    shapes = {"embedding": (9, 4), "head": (9, 4), "norm": (4,), "w": (4, 4), "e": (2, 4, 4), "v": (4, 4)}
    config = SOAP(lr=1e-3, beta1=0.9)
    rules = assign_rules(roles, config, shapes)
    assert all(rules[name] is config for name in ("w", "e", "v"))
    assert rules["embedding"] is rules["head"]
    assert [each.name for each in rules["head"].state_tensors((9, 4))][3:] == ["right", "right_basis"]
    assert rules["norm"] == AdamWRule(lr=1e-3, weight_decay=0.01, beta1=0.9, beta2=0.95)


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize(
    ("world", "layout"), [(2, "optimizer"), pytest.param(4, "everything", marks=pytest.mark.slow), (4, "hybrid")]
)
def test_ranks_update_as_one_process_does(
    run_ranks: RankServer, tmp_path: Path, world: int, layout: str, experts: bool
) -> None:
    """To the bit with exact sums of gradients: each owner keeps the squares of its own matrices."""
    soap: dict[str, Any] = {"optimizer": "soap", "settings": {"refresh_every": 2}}
    run = Run(world, **LAYOUTS[layout], **soap, exact=True, steps=5, microbatches=4, experts=experts)
    expected = perform(run_ranks, run.alone, tmp_path / "alone")
    assert expected.losses[-1] < expected.losses[0]
    assert same_bits(perform(run_ranks, run, tmp_path / "ranks"), expected)
