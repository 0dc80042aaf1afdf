"""What holds of every optimizer: the kinds come from the union of `optim.kind`, so that a new one is tested at once."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from hornbook.model.build_model import parameter_roles
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.clipping_config import StepLimits
from hornbook.optim.config.rule import ITEM_BYTES
from hornbook.optim.low_precision.narrow_adamw import LowPrecisionAdamW
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.engine import Engine
from tests.optim.kinds import CASES, IDS, KINDS, SHAPES, config_of, everything, make, same_bits, step
from tests.parallel import test_engine
from tests.parallel.trajectory import LAYOUTS, Run, perform
from tests.parallel.trajectory import same_bits as same_runs
from tests.ranks import RankServer

every_case = pytest.mark.parametrize(("kind", "more"), CASES, ids=IDS)
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_case
def test_state_is_all_that_the_next_step_needs(kind: str, more: dict[str, Any]) -> None:
    """Values and declared state, copied into a new optimizer, go on bit for bit."""
    config = config_of(kind, **more)
    named, optimizer = make(config)
    for seed in range(3):
        step(named, optimizer, seed)
    stored = everything(named, optimizer)
    for seed in range(3, 6):
        step(named, optimizer, seed)
    again, other = make(config, seed=1)
    with torch.no_grad():
        for name, tensor in (again | {f"{n}.{each.name}": t for n, each, t in other.state()}).items():
            tensor.copy_(stored[name])
    for seed in range(3, 6):
        step(again, other, seed)
    assert same_bits(everything(again, other), everything(named, optimizer))


@every_case
def test_a_refused_step_changes_no_bit(kind: str, more: dict[str, Any]) -> None:
    named, optimizer = make(config_of(kind, **more))
    step(named, optimizer, 1, torch.tensor(0.0))
    before = everything(named, optimizer)
    step(named, optimizer, 2, torch.tensor(1.0))
    assert same_bits(everything(named, optimizer), before)
    step(named, optimizer, 2, torch.tensor(0.0))
    after = everything(named, optimizer)
    assert not any(torch.equal(after[name], before[name]) for name in named)


@every_case
def test_steps_lead_downhill(kind: str, more: dict[str, Any]) -> None:
    """The square distance to a target falls, and every parameter has moved."""
    config = config_of(kind, **more)
    named, optimizer = make(config)
    targets = {name: torch.randn(shape, generator=torch.Generator().manual_seed(9)) for name, shape in SHAPES.items()}

    def distance() -> float:
        return sum(float((each.detach() - targets[name]).square().sum()) for name, each in named.items())

    before = distance()
    for _ in range(10):
        for name, parameter in named.items():
            parameter.grad = (parameter.detach() - targets[name]) * 2
        optimizer.step()
    assert distance() < before


@every_kind
def test_bytes_of_state_are_those_that_are_kept(kind: str) -> None:
    """The estimate of a large matrix is exact but for its rows, columns and scalars."""
    config, parameter = config_of(kind), Parameter(torch.zeros(256, 512))
    optimizer = build_optimizer({"w": parameter}, {"w": "matrix"}, config)
    kept = sum(tensor.nbytes for _, each, tensor in optimizer.state() if not each.is_parameter)
    small = sum(
        ITEM_BYTES[each.dtype] * tensor.numel()
        for _, each, tensor in optimizer.state()
        if each.extent not in ("shape", "blocks")
    )
    assert config.state_bytes(parameter.numel()) == kept - small


@every_case
def test_a_shard_of_rows_is_updated_as_it_is_in_the_whole(kind: str, more: dict[str, Any]) -> None:
    """Bit for bit, where parameters are cut at multiples of 16 values: what `parallel.exact` asks of shards."""
    config = config_of(kind, **more)
    if config.whole or any(rule.whole for rule in [config.rule_for("matrix", (35, 16))]):
        pytest.skip("whole parameters are updated by one rank")
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(35, 16, generator=generator), torch.randn(4, 35, 16, generator=generator)
    whole = Parameter(start.clone())
    shards = [Parameter(part.clone()) for part in start.split([11, 0, 23, 1])]
    updates = [_steps(config, {"w": whole}, [{"w": each} for each in gradients])]
    for number, shard in enumerate(shards):
        parts = [each.split([11, 0, 23, 1])[number] for each in gradients]
        updates.append(_steps(config, {"w": shard}, [{"w": each} for each in parts], (0, 11, 11, 34)[number]))
    for name, tensor in updates[0].items():
        if tensor.dim() == 2:
            assert same_bits({"": torch.cat([each[name] for each in updates[1:]])}, {"": tensor}), name


def _steps(
    config: Any, named: dict[str, Parameter], gradients: list[dict[str, Tensor]], first: int = 0
) -> dict[str, Tensor]:
    """`first`: the row of the whole parameter that these begin with."""
    shapes = {name: (35, *parameter.shape[1:]) for name, parameter in named.items()}
    optimizer = build_optimizer(named, {"w": "matrix"}, config, None, shapes)
    for _, update in optimizer.updates:
        if isinstance(update, LowPrecisionAdamW):
            update.first_values = {"w": first * 16}
    for each in gradients:
        for name, parameter in named.items():
            parameter.grad = each[name].clone()
        optimizer.step()
    return everything(named, optimizer)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@every_case
def test_a_bad_gradient_anywhere_changes_no_bit_of_a_model(kind: str, more: dict[str, Any], precision: str) -> None:
    """A step is refused whole, whichever parameter had it, and the next is that of a run that never saw it.

    So is one that the guard refuses.
    """
    engines = [_engine(kind, more, precision) for _ in range(2)]
    for engine, optimizer in engines:
        assert test_engine.take_step(engine, optimizer, test_engine.make_batch(2, seed=1)) == 1.0
    engine, optimizer = engines[0]
    before = test_engine.snapshot(engine, optimizer)
    bad = itertools.cycle([float("nan"), float("inf"), float("-inf"), 1e38])
    for name, value in zip(list(engine.named_parameters)[::4], bad, strict=False):
        spoil = (name, value)
        assert test_engine.take_step(engine, optimizer, test_engine.make_batch(2, seed=2), spoil) == 0.0
        assert same_bits(test_engine.snapshot(engine, optimizer), before), name
    beyond = StepLimits(norm=0.0)
    assert test_engine.take_step(engine, optimizer, test_engine.make_batch(2, seed=2), limits=beyond) == 0.0
    assert same_bits(test_engine.snapshot(engine, optimizer), before)
    if engine.scaler is not None:
        engine.scaler.load({"scale": 2.0**16, "good_steps": 1})
    for each, its in engines:
        assert test_engine.take_step(each, its, test_engine.make_batch(2, seed=3)) == 1.0
    found, expected = (test_engine.snapshot(*each) for each in engines)
    assert same_bits(found, expected)


def _engine(kind: str, more: dict[str, Any], precision: str) -> tuple[Engine, Optimizer]:
    engine = test_engine.make_engine(precision=precision)
    config = config_of(kind, **more)
    return engine, build_optimizer(engine.named_parameters, parameter_roles(engine.model), config)


@every_kind
@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, "optimizer"),
        pytest.param(4, "hybrid", marks=pytest.mark.slow),
        pytest.param(4, "everything", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_share_a_model_update_it_as_one_process_does(
    run_ranks: RankServer, tmp_path: Path, kind: str, world: int, layout: str
) -> None:
    """With exact sums of gradients, to the bit."""
    fields: dict[str, Any] = {"steps": 3, "microbatches": world, "experts": layout != "optimizer"}
    run = Run(world, **LAYOUTS[layout], optimizer=kind, exact=True, **fields)
    expected = perform(run_ranks, run.alone, tmp_path / "alone")
    assert same_runs(perform(run_ranks, run, tmp_path / "ranks"), expected)
