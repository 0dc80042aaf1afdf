"""AdamW with moments of 8 bits and in bfloat16: kernels against the reference, and both against AdamW."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.adamw_config import AdamW8bitRule, AdamWRule
from hornbook.optim.low_precision import narrow_adamw as adamw
from hornbook.optim.low_precision.codes import dynamic_map, grid, quantize
from hornbook.optim.low_precision.narrow_adamw import LowPrecisionAdamW, row_pieces
from hornbook.optim.optimizer import Optimizer
from tests.optim.kinds import config_of, everything, same_bits
from tests.parallel.trajectory import LAYOUTS, Run, perform
from tests.parallel.trajectory import same_bits as same_runs
from tests.ranks import RankServer

BOTH = pytest.mark.parametrize("rule", [{"kind": "adamw8bit", "min_values": 1}, {"kind": "adamw", "state": "bf16"}])
SHAPES = [(37, 300), (5, 1031), (64, 64), (3, 4, 7)]


def make(rule: dict[str, Any], values: Tensor, kernels: bool = True) -> tuple[Parameter, Optimizer]:
    parameter = Parameter(values.clone())
    optimizer = build_optimizer({"w": parameter}, {"w": "matrix"}, config_of(**{"lr": 1e-2, **rule}))
    for _, update in optimizer.updates:
        assert isinstance(update, LowPrecisionAdamW)
        update.kernels = kernels
    return parameter, optimizer


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_have_the_bits_of_the_reference(rule: dict[str, Any], dtype: torch.dtype, threads: int) -> None:
    """Blocks that are cut, gradients over many orders of magnitude, rows of zeros."""
    before, generator = torch.get_num_threads(), torch.Generator().manual_seed(1)
    torch.set_num_threads(threads)
    try:
        for shape in SHAPES:
            values = torch.randn(shape, generator=generator).to(dtype)
            runs = [make(rule, values, kernels) for kernels in (True, False)]
            for number in range(8):
                gradient = torch.randn(shape, generator=generator) * 10 ** torch.randn(shape, generator=generator)
                gradient[0] *= number % 3 == 0
                for parameter, optimizer in runs:
                    parameter.grad = gradient.to(dtype)
                    optimizer.step()
            ours, reference = (everything({"w": parameter}, optimizer) for parameter, optimizer in runs)
            assert same_bits(ours, reference), shape
    finally:
        torch.set_num_threads(before)


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_in_pieces_has_the_bits_of_the_whole(
    rule: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU updates large parameters some rows at a time, since draws take 8 bytes a value."""

    def pieces_of_rows(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], _: int) -> Iterator[Any]:
        sizes = list[int]()
        for piece in row_pieces(parameter, gradient, state, 600):
            sizes.append(piece[0].numel())
            yield piece
        assert sum(sizes) == parameter.numel()
        assert all(size <= 600 or size == parameter[0].numel() for size in sizes)

    generator, runs = torch.Generator().manual_seed(1), []
    values = torch.randn(shape, generator=generator).to(dtype)
    gradients = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    for split in (row_pieces, pieces_of_rows):
        monkeypatch.setattr(adamw, "row_pieces", split)
        parameter, optimizer = make(rule, values, kernels=False)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        runs.append(everything({"w": parameter}, optimizer))
    assert same_bits(*runs)


@pytest.mark.slow
def test_codes_of_kernels_are_those_of_the_reference_beside_every_limit() -> None:
    """Without memory moments are the gradient and its square: values beside limits, in blocks of every length."""
    limits = torch.cat([2.0 ** torch.arange(-40.0, 0.0), *map(_limits, (True, False)), _limits(signed=False).sqrt()])
    x = torch.cat([limits.nextafter(torch.tensor(float(way))) for way in (0, 2)] + [limits]).clamp(max=1.0)
    for count in (*range(1, 70), 255, 256, 257):
        row = torch.cat([x, -x, x[: -2 * len(x) % count]]).reshape(-1, count)
        row[:, 0] = 1.0
        parameter, optimizer = make(
            {"kind": "adamw8bit", "min_values": 1, "beta1": 0.0, "beta2": 0.0}, torch.zeros_like(row)
        )
        parameter.grad = row
        optimizer.step()
        found = everything({"w": parameter}, optimizer)
        assert torch.equal(found["w.exp_avg"], quantize(row, signed=True)[0]), count
        assert torch.equal(found["w.exp_avg_sq"], quantize(row * row, signed=False)[0]), count


def _limits(signed: bool) -> Tensor:
    """Magnitudes of codes, what lies in the middle between two, and where decades begin."""
    values = dynamic_map(signed).abs()
    return torch.cat([values, (values[1:] + values[:-1]).abs() / 2, torch.tensor(grid(signed).limits)])


@BOTH
def test_first_steps_are_those_of_adamw(rule: dict[str, Any]) -> None:
    """No state is read at the first step: it is lr x sign of the gradient, and the decay."""
    values, gradient = torch.randn(8, 300), torch.randn(8, 300)
    gradient += gradient.sign() * 0.1  # beside eps
    parameter, optimizer = make(rule, values)
    parameter.grad = gradient
    optimizer.step()
    assert torch.allclose(parameter, values * (1 - 1e-2 * 0.1) - 1e-2 * gradient.sign(), atol=1e-6)


@BOTH
def test_500_steps_end_where_those_of_adamw_do(rule: dict[str, Any]) -> None:
    """A regression by two layers: the loss is within 1 % (METHODS: 60 steps of torchao's differ by 1 %)."""
    losses = [_regression(config) for config in (rule, {"kind": "adamw"})]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


def _regression(rule: dict[str, Any]) -> float:
    """The loss on new data of 128 -> 256 -> 16 after 500 steps on noisy values of another such network."""
    generator = torch.Generator().manual_seed(0)
    teacher, student = (nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 16)) for _ in range(2))
    with torch.no_grad():
        for network in (teacher, student):
            for each in network.parameters():
                each.copy_(torch.randn(each.shape, generator=generator) * (2.0 if network is teacher else 1.0) / 11)
    named = dict(student.named_parameters())
    roles = {name: "matrix" if each.dim() == 2 else "vector" for name, each in named.items()}
    optimizer = build_optimizer(named, roles, config_of(**{"lr": 2e-3, "weight_decay": 0.01, **rule}))

    def loss(rows: int) -> Tensor:
        x = torch.randn(rows, 128, generator=generator)
        noise = torch.randn(rows, 16, generator=generator) * 0.5
        return (student(x) - teacher(x).detach() - noise).square().mean()

    for step in range(500):
        optimizer.set_learning_rate(2e-3 * (1 - step / 500))
        student.zero_grad()
        loss(64).backward()
        optimizer.step()
    with torch.no_grad():
        return float(loss(8192))


def test_vectors_small_tensors_and_embeddings_keep_float32_moments() -> None:
    config = config_of("adamw8bit")
    model = build_model(ModelConfig(layers=1, width=64, heads=2), 96)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    rules = {name: config.rule_for(role, shapes[name]) for name, role in parameter_roles(model).items()}
    eight = {name for name, rule in rules.items() if isinstance(rule, AdamW8bitRule)}
    assert eight == {name for name, shape in shapes.items() if len(shape) == 2 and name.startswith("blocks.")}
    assert len({id(rule) for rule in rules.values()}) == 2
    plain = next(rule for rule in rules.values() if not isinstance(rule, AdamW8bitRule))
    assert isinstance(plain, AdamWRule)
    assert (plain.lr, plain.beta1, plain.weight_decay) == (config.lr, 0.9, config.weight_decay)
    assert isinstance(config_of("adamw8bit", embeddings=True).rule_for("embedding", (96, 64)), AdamW8bitRule)
    assert isinstance(config.rule_for("matrix", (63, 65)), AdamWRule)


def test_a_group_may_have_it_too() -> None:
    group = {"match": "a", "rule": {"kind": "adamw8bit"}}
    named = {"a": Parameter(torch.randn(64, 64)), "b": Parameter(torch.randn(64, 64))}
    optimizer = build_optimizer(named, dict.fromkeys(named, "matrix"), config_of("adamw", groups=[group]))
    kept = {f"{name}.{each.name}": tensor.dtype for name, each, tensor in optimizer.state()}
    assert (kept["a.exp_avg"], kept["b.exp_avg"]) == (torch.uint8, torch.float32)


def test_bytes_of_state() -> None:
    assert config_of("adamw8bit").state_bytes(10**6) / 10**6 < 2.04
    assert config_of("adamw", state="bf16").state_bytes(10**6) == 4 * 10**6


def test_updates_below_half_a_unit_are_not_lost() -> None:
    """w in bfloat16 and updates of 2^-12 |w|: rounded to nearest it stays where it is, stochastically it arrives."""
    start, rate, steps = 1.0, 2.0**-12, 1024
    nearest, stochastic = Parameter(torch.full((64, 64), start).bfloat16()), torch.full((64, 64), start).bfloat16()
    parameter, optimizer = make({"kind": "adamw", "lr": rate, "weight_decay": 0.0}, stochastic)
    plain = torch.optim.AdamW([nearest], lr=rate, weight_decay=0.0)
    for _ in range(steps):
        nearest.grad = torch.ones_like(nearest)
        parameter.grad = torch.ones_like(parameter)
        plain.step()
        optimizer.step()
    assert bool((nearest == start).all())
    mean = float(parameter.detach().float().mean())
    assert mean == pytest.approx(start - rate * steps, abs=0.01)


@pytest.mark.parametrize("kind", ["sgd", "lion"])
def test_bfloat16_parameters_need_an_update_that_rounds_stochastically(kind: str) -> None:
    parameter = Parameter(torch.zeros(4, 4, dtype=torch.bfloat16))
    with pytest.raises(UsageError, match=r"cannot update w, which is bfloat16: .* take adamw or adamw8bit"):
        build_optimizer({"w": parameter}, {"w": "matrix"}, config_of(kind))


@pytest.mark.parametrize(("world", "layout"), [(2, "everything"), (4, "hybrid")])
def test_draws_do_not_depend_on_ranks(run_ranks: RankServer, tmp_path: Any, world: int, layout: str) -> None:
    """Moments in bfloat16 on ranks that share the model are those of one process, to the bit."""
    more = {"state": "bf16"}
    run = Run(world, **LAYOUTS[layout], exact=True, steps=4, settings=more)
    expected = perform(run_ranks, run.alone, tmp_path / "alone")
    assert same_runs(perform(run_ranks, run, tmp_path / "ranks"), expected)
