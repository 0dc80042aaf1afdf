"""Clipping by norm, value, rows and past norms: closed forms, and the same on any number of ranks."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn import Parameter

from hornbook.optim.config.clipping_config import AdaptiveClip, AnyClip, Clip, NormClip, ValueClip, ZScoreClip
from hornbook.parallel.gradients.clipping import LEAST_DEVIATION, NORMAL, Clipping
from hornbook.parallel.world import World
from tests.parallel.cases import whole_shard
from tests.parallel.test_engine import make_batch, make_engine
from tests.parallel.trajectory import LAYOUTS, Run, compare, perform, same_bits
from tests.ranks import RankServer

ALONE = World(torch.device("cpu"))
ROLES = {"w": "matrix", "b": "vector", "e": "matrix", "head": "head"}


def parameters(seed: int = 0) -> dict[str, Parameter]:
    """Values and gradients; the second row of `w` is zero."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (4, 3), "b": (5,), "e": (2, 3, 4), "head": (6, 3)}
    named = {name: Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}
    with torch.no_grad():
        named["w"][1] = 0.0
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return named


def clipped(how: AnyClip, named: dict[str, Parameter], *, exact: bool = False) -> dict[str, Tensor]:
    """Copies of the gradients, clipped."""
    clipping = Clipping({name: whole_shard(each) for name, each in named.items()}, ALONE, lambda: ROLES, exact=exact)
    norm = torch.stack([_gradient(each).norm() for each in named.values()]).norm()
    clipping.apply(how, norm, torch.tensor(0.0))
    return {name: _gradient(each).clone() for name, each in named.items()}


def _gradient(parameter: Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def test_by_value() -> None:
    named = parameters()
    before = {name: _gradient(each).clone() for name, each in named.items()}
    for name, found in clipped(ValueClip(limit=0.3), named).items():
        assert torch.equal(found, before[name].clamp(-0.3, 0.3))


@pytest.mark.parametrize("exact", [False, True])
def test_by_rows_is_the_formula_of_the_paper(exact: bool) -> None:
    """Rows of matrices and of experts, a vector as a whole, rows of zeros by the least norm, the head as it was."""
    how, named = AdaptiveClip(limit=1.0, least=0.1), parameters()
    weights = {name: each.detach().double() for name, each in named.items()}
    gradients = {name: _gradient(each).double().clone() for name, each in named.items()}
    found = clipped(how, named, exact=exact)
    shortened = 0
    for name in ("w", "b", "e"):
        dims = (0,) if name == "b" else (-1,)
        sizes = torch.linalg.vector_norm(weights[name], dim=dims, keepdim=True).clamp(min=0.1)
        norms = torch.linalg.vector_norm(gradients[name], dim=dims, keepdim=True)
        expected = torch.where(norms > sizes, sizes / norms * gradients[name], gradients[name])
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-6, atol=1e-7)
        shortened += int((norms > sizes).sum())
    assert 0 < shortened < 11
    assert torch.equal(found["head"].double(), gradients["head"])
    assert found["w"][1].norm() <= 0.1 * (1 + 1e-6)


def feed(clipping: Clipping, how: AnyClip, parameter: Parameter, norm: float, flag: float = 0.0) -> float:
    """Norm after clipping of a gradient of this norm."""
    parameter.grad = torch.tensor([norm, 0.0])
    clipping.apply(how, torch.tensor(norm), torch.tensor(flag))
    return float(_gradient(parameter).norm())


def test_a_norm_that_stands_out_is_cut_to_the_edge_of_the_usual() -> None:
    """Median and median distance over the logarithms of the norms after clipping, written out."""
    how = ZScoreClip(z=2.0, window=16, warmup=8, limit=0.0)
    parameter = Parameter(torch.zeros(2))
    clipping = Clipping({"w": whole_shard(parameter)}, ALONE, lambda: ROLES, exact=False)
    generator = torch.Generator().manual_seed(0)
    norms = torch.exp(0.3 * torch.randn(60, generator=generator)).tolist()
    norms[30], norms[45] = 1e3, 50.0
    window: list[float] = []
    for norm in norms:
        limit = math.inf
        if len(window) >= how.warmup:
            middle = statistics.median_low(window)
            deviation = NORMAL * statistics.median_low([abs(each - middle) for each in window])
            limit = math.exp(middle + how.z * max(deviation, LEAST_DEVIATION))
        assert feed(clipping, how, parameter, norm) == pytest.approx(min(norm, limit), rel=1e-5)
        window = [*window, math.log(min(norm, limit))][-how.window :]
        assert clipping.state() == pytest.approx(window, rel=1e-5, abs=1e-6)


def test_the_norms_of_a_published_spike_are_cut() -> None:
    """BLOOM's log (tr11, chronicles, iterations 31214 to 31222) after a calm stretch: the fourth norm stands out."""
    how = ZScoreClip(warmup=8)
    parameter = Parameter(torch.zeros(2))
    clipping = Clipping({"w": whole_shard(parameter)}, ALONE, lambda: ROLES, exact=False)
    generator = torch.Generator().manual_seed(1)
    for norm in (0.25 * torch.exp(0.2 * torch.randn(128, generator=generator))).tolist():
        feed(clipping, how, parameter, norm)
    found = [feed(clipping, how, parameter, norm) for norm in (0.242, 0.947, 2.39, 15.9, 145, 960, 353, 379, 650)]
    assert found[0] == pytest.approx(0.242, rel=1e-6)
    assert max(found) < 0.6


def test_a_lasting_change_of_the_norm_is_followed_and_refused_steps_are_not_remembered() -> None:
    how = ZScoreClip(window=32, warmup=8)
    parameter = Parameter(torch.zeros(2))
    clipping = Clipping({"w": whole_shard(parameter)}, ALONE, lambda: ROLES, exact=False)
    for number in range(40):
        feed(clipping, how, parameter, 1.0 + 0.1 * (number % 5))
    before = clipping.state()
    for norm in (math.nan, math.inf, 1e30):
        feed(clipping, how, parameter, norm, flag=1.0)
        assert clipping.state() == before
    assert feed(clipping, how, parameter, 5.0) < 2.5
    found = [feed(clipping, how, parameter, 5.0 + 0.5 * (number % 5)) for number in range(200)]
    assert found[-5:] == pytest.approx([5.0, 5.5, 6.0, 6.5, 7.0], rel=1e-5)


def test_what_it_remembers_goes_on_bit_for_bit_and_ends_with_another_kind() -> None:
    how = ZScoreClip(window=8, warmup=4, z=0.1)
    parameter = Parameter(torch.zeros(2))
    one, other = (Clipping({"w": whole_shard(parameter)}, ALONE, lambda: ROLES, exact=False) for _ in range(2))
    for number in range(6):
        feed(one, how, parameter, 1.0 + number)
    other.load(one.state())
    assert other.state() == one.state()
    for number in range(12):
        norm = 2.0 + math.sin(number)
        assert feed(one, how, parameter, norm) == feed(other, how, parameter, norm)
        assert one.state() == other.state()
    feed(one, ValueClip(), parameter, 1.0)
    assert one.state() == []


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("how", [ValueClip(limit=1e-3), AdaptiveClip(limit=1e-3), ZScoreClip(warmup=4, limit=1e-2)])
def test_the_norm_before_is_told_and_the_scale_of_fp16_is_gone(how: AnyClip, precision: str) -> None:
    batch = make_batch(2)
    engines = [make_engine(precision=precision) for _ in range(2)]
    norms = []
    for engine, clip in zip(engines, (how, 0.0), strict=True):
        engine.zero_gradients()
        engine.forward_backward([batch], float(batch.weights.sum()))
        norms.append(float(engine.clip_gradients(clip)))
    assert norms[0] == norms[1]
    after, whole = (
        torch.stack([_gradient(each).norm() for each in engine.named_parameters.values()]).norm() for engine in engines
    )
    assert float(whole) == pytest.approx(norms[1], rel=1e-3)
    assert 1e-6 < after < 0.99 * whole


def test_a_plain_number_is_the_largest_norm() -> None:
    adapter = TypeAdapter[Any](Clip)
    for value in (0.5, "0.5", {"kind": "norm", "limit": 0.5}):
        assert adapter.validate_python(value) == NormClip(limit=0.5)
    for value in (-1, True, "much", {"kind": "value", "limit": 0}):
        with pytest.raises(ValidationError):
            adapter.validate_python(value)
    batch, gradients = make_batch(2), []
    for how in (0.05, NormClip(limit=0.05)):
        engine = make_engine()
        engine.zero_gradients()
        engine.forward_backward([batch], float(batch.weights.sum()))
        engine.clip_gradients(how)
        gradients.append([_gradient(each).clone() for each in engine.named_parameters.values()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


LAYOUT = pytest.mark.parametrize(
    ("world", "layout"),
    [
        (4, "hybrid"),
        pytest.param(2, "none", marks=pytest.mark.slow),
        pytest.param(2, "optimizer", marks=pytest.mark.slow),
        pytest.param(4, "everything", marks=pytest.mark.slow),
    ],
)


@pytest.mark.parametrize("clip", ["value", "adaptive", "zscore"])
@LAYOUT
def test_ranks_clip_as_one_process_does(
    run_ranks: RankServer, tmp_path: Path, world: int, layout: str, clip: Any
) -> None:
    """With exact sums to the bit; L1 and L2 penalties are in it."""
    run = Run(world, **LAYOUTS[layout], clip=clip, penalty=1e-3, exact=True, steps=8, experts=layout == "hybrid")
    expected = perform(run_ranks, run.alone, tmp_path / "alone")
    assert same_bits(perform(run_ranks, run, tmp_path / "ranks"), expected)


@pytest.mark.parametrize("clip", ["adaptive", "zscore"])
@LAYOUT
def test_with_torchs_sums_only_the_last_digits_differ(
    run_ranks: RankServer, tmp_path: Path, world: int, layout: str, clip: Any
) -> None:
    run = Run(world, **LAYOUTS[layout], clip=clip, penalty=1e-3, precision="fp64", steps=6)
    found, alone = (perform(run_ranks, each, tmp_path / name) for each, name in ((run, "ranks"), (run.alone, "one")))
    difference = compare(found, alone)
    assert max(difference.losses, difference.norms, difference.weights) < 1e-9, difference
