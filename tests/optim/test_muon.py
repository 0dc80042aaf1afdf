"""Muon against torch's, its iteration against singular values, and which parameters it takes."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.optim.build_optimizer import assign_rules, build_optimizer
from hornbook.optim.config.adamw_config import AdamWRule
from hornbook.optim.config.matrix_rules import MuonRule
from hornbook.optim.config.optim import SOAP, Muon
from hornbook.optim.config.optimizer_config import ParameterGroup
from hornbook.optim.muon import coefficients_of, iteration_dtype, orthogonalize, scale_of, stacks
from hornbook.optim.optimizer import Optimizer
from tests.optim.kinds import everything
from tests.optim.kinds import same_bits as same_values
from tests.parallel.trajectory import LAYOUTS, Run, perform, same_bits
from tests.ranks import RankServer

SHAPES = [(12, 6), (6, 24), (8, 8)]


def make(config: Muon, start: torch.Tensor) -> tuple[Parameter, Optimizer]:
    parameter = Parameter(start.clone())
    return parameter, build_optimizer({"w": parameter}, {"w": "matrix"}, config)


def gradients(shape: tuple[int, ...], steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for _ in range(steps)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("ours", "theirs"), [("match_rms", "match_rms_adamw"), ("shape", "original")])
@pytest.mark.parametrize("nesterov", [True, False])
def test_fifty_steps_are_those_of_torch(shape: tuple[int, int], ours: str, theirs: str, nesterov: bool) -> None:
    """To the bit: torch iterates in bfloat16."""
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    config = Muon.model_validate(
        {"lr": 0.02, "weight_decay": 0.05, "scale": ours, "nesterov": nesterov, "dtype": "bfloat16"}
    )
    own, optimizer = make(config, start)
    other = Parameter(start.clone())
    reference = torch.optim.Muon([other], lr=0.02, weight_decay=0.05, nesterov=nesterov, adjust_lr_fn=theirs)
    for gradient in gradients(shape, 50):
        own.grad, other.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
    assert torch.equal(own, other)
    assert torch.equal(optimizer.updates[0][1].state[own]["momentum_buffer"], reference.state[other]["momentum_buffer"])


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_device_refuses_a_step_without_the_host(nesterov: bool) -> None:
    """As on a GPU: a refused step, its gradients not finite, changes no bit; an accepted one has the usual bits."""
    start = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    start[0, 0] = -0.0
    runs = [make(Muon(lr=0.02, weight_decay=0.05, nesterov=nesterov), start) for _ in range(2)]
    update = runs[1][1].updates[0][1]
    update._step_supports_amp_scaling = True  # pyright: ignore[reportAttributeAccessIssue]
    assert not runs[1][1].asks_host
    for number, gradient in enumerate(gradients((4, 6), 6)):
        refused = number in (0, 3)
        for parameter, optimizer in runs:
            parameter.grad = gradient * float("nan") if refused else gradient.clone()
            optimizer.step(torch.tensor(float(refused)))
        assert same_values(*(everything({"w": parameter}, optimizer) for parameter, optimizer in runs))


def test_the_first_step_is_known() -> None:
    """A gradient of orthogonal rows of equal length keeps its direction; the decay comes first."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.linalg.qr(torch.randn(16, 4, generator=generator, dtype=torch.float64)).Q.T.float()
    start = torch.randn(4, 16, generator=generator)
    own, optimizer = make(Muon(lr=0.5, weight_decay=0.25, dtype="float32", iteration="polar_express"), start)
    own.grad = 3.0 * rows
    optimizer.step()
    value = 0.5  # of every singular value, after division by the norm
    for a, b, c in coefficients_of("polar_express", 5):
        value = a * value + b * value**3 + c * value**5
    expected = start * (1 - 0.5 * 0.25) - 0.5 * 0.2 * math.sqrt(16) * value * rows
    torch.testing.assert_close(own.detach(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 256), (512, 64), (3, 32, 192)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    """Of Gaussian matrices four times as long as wide, in the interval that METHODS of Muon give: 0.68 to 1.14."""
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices, coefficients_of("quintic", 5), torch.float32))
    assert 0.68 <= float(values.min()) <= float(values.max()) <= 1.14


def test_polar_express_converges_to_the_polar_factor() -> None:
    matrix = torch.randn(48, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix)
    found = orthogonalize(matrix, coefficients_of("polar_express", 12), torch.float64)
    torch.testing.assert_close(found, left @ right, rtol=0, atol=1e-9)
    quintic = torch.linalg.svdvals(orthogonalize(matrix, coefficients_of("quintic", 12), torch.float64))
    assert float((quintic - 1).abs().max()) > 0.1


def test_experts_are_matrices_of_their_own() -> None:
    """What one expert becomes does not depend on the others."""
    stacked = torch.randn(4, 6, 10, generator=torch.Generator().manual_seed(0))
    own, optimizer = make(Muon(lr=0.1, dtype="float32"), stacked)
    alone = [make(Muon(lr=0.1, dtype="float32"), each) for each in stacked]
    for gradient in gradients((4, 6, 10), 5):
        own.grad = gradient.clone()
        optimizer.step()
        for (parameter, single), each in zip(alone, gradient, strict=True):
            parameter.grad = each.clone()
            single.step()
    torch.testing.assert_close(own.detach(), torch.stack([each.detach() for each, _ in alone]), rtol=1e-5, atol=1e-6)


def test_a_stack_of_equal_shapes_is_updated_as_each_alone() -> None:
    """As on a GPU, where matrices of one shape are one batched product."""
    each = gradients((6, 9), 3)
    coefficients = coefficients_of("quintic", 5)
    together = orthogonalize(torch.stack(each), coefficients, torch.float32)
    for one, other in zip(together, each, strict=True):
        torch.testing.assert_close(one, orthogonalize(other, coefficients, torch.float32), rtol=1e-5, atol=1e-6)
    on_gpu = [torch.empty(shape, device="meta") for shape in ((6, 9), (2, 6, 9), (4, 4), (6, 9))]
    assert sorted(len(stack) for stack in stacks(on_gpu)) == [1, 1, 2]
    assert [len(stack) for stack in stacks(each)] == [1, 1, 1]


def test_a_gradient_of_zeros_moves_nothing_but_the_decay() -> None:
    own, optimizer = make(Muon(lr=0.5, weight_decay=0.5), torch.ones(4, 3))
    own.grad = torch.zeros(4, 3)
    optimizer.step()
    assert torch.equal(own.detach(), torch.full((4, 3), 0.75))


def test_the_scale_follows_the_shape() -> None:
    shape = torch.Size((2, 16, 100))
    assert scale_of(shape, "match_rms") == pytest.approx(2.0)
    assert scale_of(shape, "shape") == 1.0
    assert scale_of(torch.Size((400, 100)), "shape") == 2.0


def test_the_dtype_is_that_of_the_device_or_the_setting() -> None:
    native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert iteration_dtype("auto", torch.device("cpu")) is (torch.bfloat16 if native else torch.float32)
    assert iteration_dtype("bfloat16", torch.device("cpu")) is torch.bfloat16


def test_the_rest_has_its_own_rule() -> None:
    roles = {"embedding": "embedding", "head": "head", "norm": "norm", "bias": "vector", "w": "matrix", "e": "matrix"}
    shapes = {"embedding": (9, 4), "head": (9, 4), "norm": (4,), "bias": (4,), "w": (4, 4), "e": (2, 4, 4)}
    config = Muon(rest=AdamWRule(lr=1e-2, beta2=0.9))
    rules = assign_rules(roles, config, shapes)
    assert {name for name, rule in rules.items() if rule is config} == {"w", "e"}
    assert all(rules[name] is config.rest for name in ("embedding", "head", "norm", "bias"))
    group = Muon(groups=[ParameterGroup(match="head", rule=MuonRule())])
    with pytest.raises(UsageError, match=r"MuonRule cannot update head.*between embedding and head.*role 'head'"):
        assign_rules(roles, group, shapes)


def test_the_rest_has_its_own_rate() -> None:
    named = {"w": Parameter(torch.ones(4, 4)), "norm": Parameter(torch.ones(4))}
    optimizer = build_optimizer(named, {"w": "matrix", "norm": "norm"}, Muon(lr=0.02, rest=AdamWRule(lr=3e-4)))
    optimizer.set_learning_rate(0.01)
    rates = {group["param_names"][0]: group["lr"] for _, update in optimizer.updates for group in update.param_groups}
    assert rates == pytest.approx({"w": 0.01, "norm": 1.5e-4})


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize(
    ("world", "layout"), [(2, "optimizer"), pytest.param(4, "everything", marks=pytest.mark.slow), (4, "hybrid")]
)
def test_ranks_update_as_one_process_does(
    run_ranks: RankServer, tmp_path: Path, world: int, layout: str, experts: bool
) -> None:
    """To the bit with exact sums of gradients: each owner orthogonalizes its own matrices."""
    run = Run(world, **LAYOUTS[layout], optimizer="muon", exact=True, steps=3, microbatches=world, experts=experts)
    expected = perform(run_ranks, run.alone, tmp_path / "alone")
    assert same_bits(perform(run_ranks, run, tmp_path / "ranks"), expected)


def test_the_estimate_of_a_models_state_is_not_too_small() -> None:
    """Of a GPT: Muon keeps between one value and two for each parameter, SOAP squares too."""
    model = build_model(ModelConfig(layers=4, width=64, heads=4), 256)
    named, roles = dict(model.named_parameters()), parameter_roles(model)
    count = sum(each.numel() for each in named.values())
    for config, most in ((Muon(), 2.0), (SOAP(), 1.4)):
        kept = sum(tensor.nbytes for _, _, tensor in build_optimizer(named, roles, config).state())
        assert kept <= config.model_state_bytes(count) <= most * kept
