"""The protocol of optimizers: declared state, refused steps, settings from the configuration."""

from typing import Any, Literal

import pytest
import torch
from torch.nn import Parameter

from hornbook.errors import UsageError
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import Shape, StateTensor
from hornbook.optim.optimizer import Optimizer
from tests.optim.kinds import everything, same_bits, step

NAN, FINE = torch.tensor(1.0), torch.tensor(0.0)


class Momentum(OptimizerConfig):
    """SGD with momentum; torch's update for the CPU looks at no flag of non-finite gradients."""

    kind: Literal["momentum"] = "momentum"
    lr: float = 0.1
    declared: tuple[str, ...] = ("momentum_buffer",)

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return tuple(StateTensor(name) for name in self.declared)

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=0.9, fused=False)


def make(config: OptimizerConfig) -> tuple[dict[str, Parameter], Optimizer]:
    torch.manual_seed(0)
    named = {"a.weight": Parameter(torch.randn(4, 3)), "a.bias": Parameter(torch.randn(4))}
    return named, build_optimizer(named, {"a.weight": "matrix", "a.bias": "vector"}, config)  # pyright: ignore


@pytest.mark.parametrize("config", [AdamW(), Momentum()])
def test_state_is_all_that_the_next_step_needs(config: OptimizerConfig) -> None:
    named, optimizer = make(config)
    step(named, optimizer, 1)
    stored = everything(named, optimizer)
    step(named, optimizer, 2)
    again, other = make(config)
    with torch.no_grad():
        for name, tensor in (again | {f"{n}.{each.name}": t for n, each, t in other.state()}).items():
            tensor.copy_(stored[name])
    step(again, other, 2)
    assert same_bits(everything(again, other), everything(named, optimizer))


@pytest.mark.parametrize("config", [AdamW(), Momentum()])
def test_a_refused_step_changes_no_bit(config: OptimizerConfig) -> None:
    named, optimizer = make(config)
    step(named, optimizer, 1, FINE)
    before = everything(named, optimizer)
    step(named, optimizer, 2, NAN)
    assert same_bits(everything(named, optimizer), before)
    step(named, optimizer, 2, FINE)
    after = everything(named, optimizer)
    assert not any(torch.equal(after[name], before[name]) for name in after)


def test_settings_are_those_of_the_configuration() -> None:
    _, optimizer = make(AdamW(lr=0.25, beta1=0.75))
    groups = optimizer.updates[0][1].param_groups
    assert [group["lr"] for group in groups] == [0.25, 0.25]
    assert groups[0]["betas"] == (0.75, 0.95)
    optimizer.set_learning_rate(0.1)
    assert [group["lr"] for group in groups] == [0.1, 0.1]


@pytest.mark.parametrize("declared", [(), ("momentum_buffer", "another")])
def test_state_that_is_not_as_declared_is_refused(declared: tuple[str, ...]) -> None:
    named, optimizer = make(Momentum(declared=declared))
    if declared:
        del optimizer.updates[0][1].state[named["a.weight"]]["another"]
    with pytest.raises(UsageError, match=r"of a\.weight \[4, 3\] it keeps .*`Momentum\.state_tensors` must list"):
        step(named, optimizer, 1)


@pytest.mark.parametrize(
    ("tensor", "matrix", "vector", "scalar"),
    [
        (StateTensor("x"), (10, 7), (5,), ()),
        (StateTensor("x", "rows"), (10,), (5,), ()),
        (StateTensor("x", "columns"), (7,), (), ()),
        (StateTensor("x", "blocks", "uint8", 4), (10, 2), (2,), ()),
        (StateTensor("x", "scalar"), (), (), ()),
    ],
)
def test_shapes_of_state(tensor: StateTensor, matrix: Any, vector: Any, scalar: Any) -> None:
    assert [tensor.shape(shape) for shape in ((10, 7), (5,), ())] == [matrix, vector, scalar]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("x", "shape", "float12"), "has dtype 'float12': take one of parameter, float64"),
        (("x", "blocks"), "block belongs to extent"),
        (("x", "rows", "float32", 4), "block belongs to extent"),
    ],
)
def test_declarations_without_meaning_are_refused(values: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        StateTensor(*values)


def test_bytes_of_state_follow_from_the_declaration() -> None:
    class Eight(OptimizerConfig):
        lr: float = 1.0

        def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
            codes, scales = StateTensor("codes", "shape", "int8"), StateTensor("scales", "blocks", "float32", 256)
            return codes, scales, StateTensor("rows", "rows"), StateTensor("steps", "scalar", "int64")

    assert AdamW().state_bytes(1000) == 8000
    assert Eight().state_bytes(1000) == 1000 + 4 * 4
    assert OptimizerConfig(lr=1.0).state_bytes(1000) == 0
