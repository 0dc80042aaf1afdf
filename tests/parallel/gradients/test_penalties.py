"""L1 and L2 penalties: closed forms of their values and gradients, once a step, beside the loss."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.model.build_model import parameter_roles
from hornbook.optim.build_optimizer import decaying
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.engine import Engine
from tests.parallel.test_engine import gradients, make_batch, make_engine, split

L1, L2 = 0.01, 0.04


def engine_with(loss: dict[str, float], precision: str = "fp32", **optim: Any) -> Engine:
    engine = make_engine(loss=loss, precision=precision)
    config = AdamW.model_validate(optim)
    engine.penalties.names = decaying(parameter_roles(engine.model), config)
    return engine


def run(engine: Engine, batches: list[Batch]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Losses by name and gradients, unscaled."""
    engine.zero_gradients()
    losses = engine.forward_backward(batches, sum(float(batch.weights.sum()) for batch in batches))
    engine.clip_gradients(0.0)
    return losses, gradients(engine)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("count", [1, 3])
def test_values_and_gradients_are_the_closed_forms(precision: str, count: int) -> None:
    """l1 sum |w| + l2 / 2 sum w^2 over matrices and head; its gradient is added once, however many microbatches."""
    batch = make_batch(6)
    batches = split(batch, [6 // count] * count)
    total = float(batch.weights.sum())
    plain, penalised = engine_with({}, precision), engine_with({"l1": L1, "l2": L2}, precision)
    losses, before = run(plain, batches)
    found, after = run(penalised, batches)
    roles = parameter_roles(plain.model)
    decayed = {
        name: each.detach() for name, each in plain.named_parameters.items() if roles[name] in ("matrix", "head")
    }
    assert losses.keys() == {"loss"}
    assert torch.equal(found["loss"], losses["loss"])
    assert float(found["l1"]) / total == pytest.approx(L1 * sum(float(w.abs().sum()) for w in decayed.values()))
    assert float(found["l2"]) / total == pytest.approx(L2 / 2 * sum(float(w.square().sum()) for w in decayed.values()))
    for name, gradient in after.items():
        extra = L1 * decayed[name].sign() + L2 * decayed[name] if name in decayed else 0.0
        torch.testing.assert_close(gradient, before[name] + extra, rtol=1e-5, atol=1e-7)


def test_penalties_are_over_what_decays() -> None:
    """Embeddings and groups as weight decay has them, whatever its weight."""
    engine = engine_with({"l2": L2}, decay_embeddings=True, weight_decay=0.0)
    _, plain = run(engine_with({}), [make_batch(2)])
    _, found = run(engine, [make_batch(2)])
    assert not torch.equal(found["embedding.weight"], plain["embedding.weight"])
    groups = [{"match": "*", "weight_decay": 0.0}]
    _, none = run(engine_with({"l2": L2}, groups=groups), [make_batch(2)])
    assert all(torch.equal(none[name], plain[name]) for name in plain)
    roles = {"a": "norm", "b": "matrix"}
    assert decaying(roles, AdamW.model_validate({"groups": [{"match": "a", "weight_decay": 0.1}]})) == {"a", "b"}


def test_a_penalty_that_is_not_finite_refuses_the_step() -> None:
    engine = engine_with({"l2": L2})
    with torch.no_grad():
        engine.named_parameters["head.weight"].view(-1)[0] = float("inf")
    engine.zero_gradients()
    engine.forward_backward([make_batch(2)], 32.0)
    engine.clip_gradients(1.0)
    assert engine._refusal is not None
    assert float(engine._refusal.nonfinite) == 1.0
