"""Weights cast once for all microbatches of a step: the same bits as a cast each time, and nothing of them stays."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.model.build_model import parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads.head import Head
from hornbook.model.layers.linear import Linear
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.engine import Engine
from tests.parallel.test_engine import make_batch, make_engine

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"position": {"kind": "rope"}, "mlp": {"kind": "glu"}, "attention": {"kind": "full", "kv_heads": 1}},
    "delta": {"attention": {"kind": "delta"}},
    "experts": {"mlp": {"kind": "experts", "count": 4, "active": 2}},
}


def train(family: str, precision: str, *, hold: bool) -> tuple[Engine, list[dict[str, Tensor]]]:
    """Three steps of three microbatches, evaluated between them: gradients, losses, weights."""
    config = ModelConfig.model_validate({"layers": 2, "width": 32, "heads": 2, **FAMILIES[family]})
    engine = make_engine(config, precision=precision)
    assert engine._hold_weights
    engine._hold_weights = hold
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW(lr=1e-2))
    found = []
    for step in range(3):
        batches = [make_batch(2, seed=3 * step + number) for number in range(3)]
        engine.zero_gradients()
        losses = engine.forward_backward(batches, 96.0, key=(0, step))
        named = engine.named_parameters.items()
        record = {f"grad.{name}": each.grad.clone() for name, each in named if each.grad is not None}
        engine.clip_gradients(1.0)
        engine.step(optimizer)
        record |= {name: each.detach().clone() for name, each in named}
        found.append({**record, "loss": losses["loss"], "evaluated": engine.evaluate(batches[0])})
    return engine, found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_same_bits_as_a_cast_each_time(family: str, precision: str) -> None:
    """Over steps, with evaluations between: a weight that was stale would show."""
    _, held = train(family, precision, hold=True)
    _, cast = train(family, precision, hold=False)
    for one, other in zip(held, cast, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_each_weight_is_cast_once_and_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig.model_validate({"layers": 2, "width": 32, "heads": 2, **FAMILIES["llama"]})
    engine, casts = make_engine(config, precision="bf16"), []
    monkeypatch.setattr("hornbook.model.layers.linear._cast", lambda weight, dtype: casts.append(1) or weight.to(dtype))
    heads, compute = set[Tensor | None](), engine._head.loss_and_grad_
    monkeypatch.setattr(engine._head, "loss_and_grad_", lambda *given: heads.add(engine._head.held) or compute(*given))
    engine.forward_backward([make_batch(2), make_batch(2)], 64.0)
    assert not casts
    assert heads.pop() is not None
    assert not heads  # one tensor for both microbatches
    assert engine._head.held is None
    layers = [each for each in engine.model.modules() if isinstance(each, Linear)]
    assert all(layer.held is None and layer.held_beside is None for layer in layers)
    engine.forward_backward([make_batch(2)], 32.0)  # there is nothing to share
    assert len(casts) == len(layers)


def test_an_error_leaves_nothing_held() -> None:
    engine = make_engine(ModelConfig(layers=1, width=32, heads=2), precision="bf16")
    broken = make_batch(2)
    broken.tokens[0, 0] = 10**6
    with pytest.raises(IndexError):
        engine.forward_backward([make_batch(2), broken], 64.0)
    assert all(each.held is None for each in engine.model.modules() if isinstance(each, Linear | Head))


def test_who_recomputes_holds_nothing() -> None:
    assert not make_engine(recompute="block")._hold_weights
