"""Update rules against closed forms, torch, transformers, optax, and the papers' formulas written out in float64."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import Parameter

from hornbook.optim.adagrad import AdagradUpdate
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.rule import Factors, StateTensor
from tests.optim.kinds import ROLES, SHAPES, config_of, make

LR, DECAY = 0.02, 0.3
OPTAX = Path(__file__).parent / "optax.json"
"""Made by `python tests/optim/optax_values.py` with optax 0.2 and jax on a CPU."""


def run(
    kind: str, start: dict[str, Tensor], gradients: list[dict[str, Tensor]], **settings: Any
) -> list[dict[str, Tensor]]:
    """Parameters after each step of our optimizer."""
    named = {name: Parameter(tensor.clone()) for name, tensor in start.items()}
    optimizer = build_optimizer(named, ROLES, config_of(kind, **settings))
    found = []
    for each in gradients:
        for name, parameter in named.items():
            parameter.grad = each[name].clone()
        optimizer.step()
        found.append({name: parameter.detach().clone() for name, parameter in named.items()})
    return found


def draw(steps: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Tensor], list[Any]]:
    """Start values, and gradients whose size changes from step to step."""
    generator = torch.Generator().manual_seed(seed)

    def tensors(scale: float) -> dict[str, Tensor]:
        return {name: (scale * torch.randn(shape, generator=generator)).to(dtype) for name, shape in SHAPES.items()}

    return tensors(1.0), [tensors(math.exp(number % 5 - 3)) for number in range(steps)]


# ---- First steps in closed form: moments begin at zero

FIRST: dict[str, Any] = {
    "sgd": lambda w, g, d: w - LR * (g + d * w),
    "adagrad": lambda w, g, d: w - LR * _sign(g + d * w, 1e-10),
    "rmsprop": lambda w, g, d: w - LR * (g + d * w) / (0.1 * (g + d * w).abs() + 1e-8),
    "adam": lambda w, g, d: w - LR * _sign(g + d * w, 1e-8),
    "adamw": lambda w, g, d: w * (1 - LR * d) - LR * _sign(g, 1e-8),
    "lion": lambda w, g, d: w * (1 - LR * d) - LR * g.sign(),
}
"""(weights, gradient, decay of the parameter) -> weights, all float64."""


def _sign(g: Tensor, eps: float) -> Tensor:
    return g / (g.abs() + eps)


@pytest.mark.parametrize("kind", FIRST)
def test_first_step_is_the_closed_form(kind: str) -> None:
    """L2 in the gradient for the classics, decoupled decay for the others, and neither on vectors."""
    start, gradients = draw(1)
    (found,) = run(kind, start, gradients, lr=LR, weight_decay=DECAY)
    for name, tensor in found.items():
        decay = DECAY if ROLES[name] == "matrix" else 0.0
        expected = FIRST[kind](start[name].double(), gradients[0][name].double(), decay)
        torch.testing.assert_close(tensor.double(), expected, rtol=3e-6, atol=3e-7)


def test_first_step_of_lamb_has_the_norm_of_the_weights() -> None:
    """lr |w| for each matrix, each expert by itself; Adam's step for a vector."""
    start, gradients = draw(1)
    (found,) = run("lamb", start, gradients, lr=LR)
    moved = {name: found[name].double() - start[name].double() for name in found}
    for name in ("a.weight", "experts"):
        sizes = torch.linalg.vector_norm(start[name].double(), dim=(-2, -1))
        torch.testing.assert_close(torch.linalg.vector_norm(moved[name], dim=(-2, -1)), LR * sizes, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        moved["a.bias"], -LR * _sign(gradients[0]["a.bias"].double(), 1e-6), rtol=1e-4, atol=1e-7
    )


def test_first_step_of_adafactor_is_limited_by_the_size_of_the_weights() -> None:
    """Of a vector it is rate * sign(g), and the rate is 0.01 RMS(w), or 0.01 * 0.001 for weights near zero."""
    start, gradients = draw(1)
    start["a.bias"] *= 1e-6
    (found,) = run("adafactor", start, gradients)
    expected = start["a.bias"].double() - 1e-5 * gradients[0]["a.bias"].double().sign()
    torch.testing.assert_close(found["a.bias"].double(), expected, rtol=1e-5, atol=1e-12)


# ---- Many steps beside torch, transformers and optax

TORCH = [
    ("sgd", torch.optim.SGD, {"momentum": 0.0}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    ("adagrad", torch.optim.Adagrad, {}),
    ("rmsprop", torch.optim.RMSprop, {}),
    ("rmsprop", torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.8, "centered": True}),
    ("adam", torch.optim.Adam, {}),
]


@pytest.mark.parametrize(("kind", "reference", "more"), TORCH, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_fifty_steps_are_those_of_torch_without_kernels(kind: str, reference: Any, more: Any, decay: float) -> None:
    """In float64 on torch's plain loop. Its SGD leaves the first gradient undampened, unless its buffer is there."""
    start, gradients = draw(50)
    found = run(kind, start, gradients, lr=LR, weight_decay=decay, **more)[-1]
    for name in SHAPES:
        own = decay if ROLES[name] == "matrix" else 0.0
        parameter = Parameter(start[name].double())
        other = reference([parameter], lr=LR, weight_decay=own, foreach=False, **more)
        if kind == "sgd":
            other.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        for each in gradients:
            parameter.grad = each[name].double()
            other.step()
        torch.testing.assert_close(found[name].double(), parameter.detach(), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warmup_init": True},
        {"beta1": 0.9, "weight_decay": 0.1},
        {"relative_step": False, "scale_parameter": False, "lr": 1e-3, "clip_threshold": 0.5},
        {"relative_step": False, "lr": 1e-2, "decay_rate": 0.6, "min_scale": 0.1},
    ],
    ids=str,
)
def test_fifty_steps_of_adafactor_are_those_of_transformers(settings: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers.optimization")
    start, gradients = draw(50)
    found = run("adafactor", start, gradients, **settings)[-1]
    theirs = {"lr": None if settings.get("relative_step", True) else settings["lr"], "relative_step": True} | settings
    theirs["eps"] = (1e-30, theirs.pop("min_scale", 1e-3))
    theirs["decay_rate"] = -theirs.get("decay_rate", 0.8)
    decay = theirs.pop("weight_decay", 0.0)
    for name in SHAPES:
        own = decay if ROLES[name] == "matrix" else 0.0
        parameter = Parameter(start[name].clone())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = transformers.Adafactor([parameter], weight_decay=own, **theirs)
        for each in gradients:
            parameter.grad = each[name].clone()
            other.step()
        torch.testing.assert_close(found[name], parameter.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["lion", "lamb"])
def test_twenty_steps_are_those_of_optax(kind: str) -> None:
    values = json.loads(OPTAX.read_text())
    start = {name: torch.tensor(value) for name, value in values["start"].items()}
    gradients = [{name: torch.tensor(value) for name, value in each.items()} for each in values["gradients"]]
    found = run(kind, start, gradients, **values["settings"][kind])[-1]
    for name, expected in values[kind].items():
        torch.testing.assert_close(found[name], torch.tensor(expected), rtol=3e-5, atol=3e-6)


# ---- The papers' formulas, in float64


def lion(w: Tensor, gradients: list[Tensor], decay: float) -> Tensor:
    """Algorithm 2 of arXiv 2302.06675."""
    m = torch.zeros_like(w)
    for g in gradients:
        w = w - LR * ((0.9 * m + 0.1 * g).sign() + decay * w)
        m = 0.99 * m + 0.01 * g
    return w


def lamb(w: Tensor, gradients: list[Tensor], decay: float) -> Tensor:
    """Algorithm 2 of arXiv 1904.00962, with phi(x) = x, on one matrix or vector."""
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + decay * w
        w = w - LR * (w.norm() / r.norm() if w.dim() > 1 else 1.0) * r
    return w


@pytest.mark.parametrize("kind", ["lion", "lamb"])
def test_fifty_steps_are_those_of_the_paper(kind: str) -> None:
    start, gradients = draw(50)
    found = run(kind, start, gradients, lr=LR, weight_decay=DECAY)[-1]
    reference = {"lion": lion, "lamb": lamb}[kind]
    for name, shape in SHAPES.items():
        decay = DECAY if ROLES[name] == "matrix" else 0.0
        parts = range(shape[0]) if len(shape) == 3 else [...]
        for part in parts:
            expected = reference(start[name][part].double(), [each[name][part].double() for each in gradients], decay)
            torch.testing.assert_close(found[name][part].double(), expected, rtol=1e-4, atol=1e-5)


# ---- What else is said of them


def test_without_decay_adam_is_adamw_bit_for_bit() -> None:
    start, gradients = draw(20)
    settings = {"lr": LR, "weight_decay": 0.0, "beta2": 0.95}
    found, expected = (run(kind, start, gradients, **settings)[-1] for kind in ("adam", "adamw"))
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert config_of("adam").state_tensors((2, 3)) == config_of("adamw").state_tensors((2, 3))


@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_adagrad_of_other_devices_is_that_of_the_fused_kernel(decay: float) -> None:
    start, gradients = draw(20)
    expected = run("adagrad", start, gradients, lr=LR, weight_decay=decay)[-1]
    for name in SHAPES:
        parameter = Parameter(start[name].clone())
        own = decay if ROLES[name] == "matrix" else 0.0
        update = AdagradUpdate([{"params": [parameter], "lr": LR, "eps": 1e-10, "weight_decay": own}])
        update.state[parameter] = {"step": torch.zeros(()), "sum": torch.zeros_like(parameter)}
        for each in gradients:
            parameter.grad = each[name].clone()
            update.step()
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-6, atol=1e-7)
        assert float(update.state[parameter]["step"]) == 20


def test_norms_of_zero_leave_the_step_of_lamb_unscaled() -> None:
    start, gradients = draw(1)
    start = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    (found,) = run("lamb", start, gradients, lr=LR)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, -LR * _sign(gradients[0][name], 1e-6), rtol=1e-4, atol=1e-7)
    assert all(bool(each.isfinite().all()) for each in run("lamb", start, [start], lr=LR)[0].values())


def test_state_of_experts_has_rows_and_columns_of_each_matrix() -> None:
    rows, columns = StateTensor("r", "rows"), StateTensor("c", "columns")
    assert (rows.shape((3, 4, 5)), columns.shape((3, 4, 5))) == ((3, 4), (3, 5))
    assert (list(rows.dropped_dims(3)), list(columns.dropped_dims(3))) == ([2], [1])
    assert (list(rows.dropped_dims(2)), list(columns.dropped_dims(2))) == ([1], [0])
    assert (list(rows.dropped_dims(1)), list(columns.dropped_dims(1))) == ([], [0])
    _, optimizer = make(config_of("adafactor"))
    kept = {f"{name}.{each.name}": tuple(tensor.shape) for name, each, tensor in optimizer.state()}
    assert kept["experts.exp_avg_sq_row"] == (3, 4)
    assert kept["experts.exp_avg_sq_col"] == (3, 5)
    assert kept["a.bias.exp_avg_sq"] == (8,)
    assert config_of("adafactor").state_bytes(10**6) == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "sgd", "nesterov": True, "momentum": 0}, "nesterov needs a momentum above 0"),
        ({"kind": "sgd", "nesterov": True, "dampening": 0.5}, "nesterov needs a momentum above 0 and no dampening"),
        ({"kind": "adafactor", "relative_step": False}, "without relative_step lr is the rate itself"),
        (
            {"kind": "adafactor", "relative_step": False, "lr": 0.1, "warmup_init": True},
            "warmup_init belongs to relative_step",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        config_of(**settings)


def test_sgd_takes_the_column_of_mup_for_it() -> None:
    """Table 8 of arXiv 2203.03466 at four times the width: 1 for matrices, the width for the rest; decay alike."""
    config = config_of("sgd", weight_decay=0.5)
    matrix, rest = Factors(1 / 4, 1 / 4, 4.0), Factors(1.0, 1 / 4, 1.0)
    assert config.group_settings(True, matrix) == {"weight_decay": 0.5, "lr_factor": 1.0}
    assert config.group_settings(True, rest) == {"weight_decay": 0.125, "lr_factor": 4.0}
    for kind in ("adagrad", "rmsprop", "adam", "adamw"):
        settings = config_of(kind, eps=0.25).group_settings(True, matrix)
        assert (settings["lr_factor"], settings["eps"]) == (1 / 4, 1 / 16)
