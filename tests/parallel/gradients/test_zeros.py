"""Weights that are 0 stay 0, whatever the optimizer, and nothing else does."""

import pytest
import torch

from hornbook.model.build_model import parameter_roles
from hornbook.model.layers.linear import Linear
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import SOAP, Adafactor, AdamW, Lion, Muon
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.zeros import Zeros
from tests.parallel.test_engine import make_batch, make_engine


def sparse_engine(precision: str = "fp32") -> Engine:
    """An engine in which every third weight of the blocks is 0 and stays so."""
    engine = make_engine(precision=precision)
    with torch.no_grad():
        for name, layer in engine.model.named_modules():
            if isinstance(layer, Linear) and name.startswith("blocks."):
                layer.keeps_zeros = True
                layer.weight.view(-1)[::3] = 0
    engine.zeros = Zeros(engine.model, engine.shards, engine.world)
    return engine


CONFIGS = [AdamW(lr=0.01, weight_decay=0.1), Muon(lr=0.02), SOAP(lr=0.01), Lion(lr=1e-3), Adafactor(lr=0.01)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_zeros_stay_and_all_else_moves(config: OptimizerConfig) -> None:
    engine, batch = sparse_engine(), make_batch(4)
    before = {name: each.detach().clone() for name, each in engine.named_parameters.items()}
    assert engine.zeros.share() == pytest.approx(1 / 3, abs=0.01)
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), config)
    for _ in range(3):
        engine.zero_gradients()
        engine.forward_backward([batch], float(batch.weights.sum()))
        engine.clip_gradients(1.0)
        engine.step(optimizer)
    for name, each in engine.named_parameters.items():
        if name.startswith("blocks.") and each.dim() == 2:
            assert torch.equal(each == 0, before[name] == 0)
            assert (each != before[name])[before[name] != 0].float().mean() > 0.99
        else:
            assert not torch.equal(each, before[name])


def test_their_gradients_are_in_no_norm() -> None:
    """And weights of other layers may pass through 0."""
    engine, plain, batch = sparse_engine(), sparse_engine(), make_batch(4)
    for layer in plain.model.modules():
        if isinstance(layer, Linear):
            layer.keeps_zeros = False
    plain.zeros = Zeros(plain.model, plain.shards, plain.world)
    assert plain.zeros.share() is None
    norms = []
    for each in (engine, plain):
        each.zero_gradients()
        each.forward_backward([batch], float(batch.weights.sum()))
        norms.append(float(each.clip_gradients(0.0)))
    squares = sum(
        float(parameter.grad[parameter == 0].square().sum())
        for name, parameter in plain.named_parameters.items()
        if parameter.grad is not None and name.startswith("blocks.") and parameter.dim() == 2
    )
    assert squares > 0
    assert norms[0] ** 2 == pytest.approx(norms[1] ** 2 - squares, rel=1e-5)
