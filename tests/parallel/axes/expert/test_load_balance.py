"""Experts behind the engine: auxiliary losses over ragged microbatches, padding, biases that follow the loads."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch, Source, empty_microbatch
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.mlp_config import ExpertsConfig, SigmoidRouterConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initialize
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.axes.expert.load_balance import token_masks
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig

VOCAB, TIME, RATE = 64, 16, 0.125
EXPERTS = ExpertsConfig(
    count=8, active=2, hidden=16, z_loss=0.1, balance_loss=0.5, router=SigmoidRouterConfig(balance_rate=RATE)
)
BIASES = [f"blocks.{layer}.mlp.router.bias" for layer in range(2)]


def make_engine(recompute: str = "none", mlp: ExpertsConfig = EXPERTS, **train: Any) -> Engine:
    config = ModelConfig(layers=2, width=32, heads=2, mlp=mlp)
    model = build_model(config, VOCAB)
    parallel = ParallelConfig.model_validate({"recompute": recompute})
    engine = parallelize(model, parallel, TrainConfig.model_validate({"precision": "fp32", "device": "cpu", **train}))
    initialize(model, config, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router.weight" in name:
                parameter.mul_(50)  # a router that decides
    return engine


def make_double() -> Engine:
    engine = make_engine()
    engine.model.double()
    engine.model.compute_dtype = torch.float64
    return engine


def make_batch(rows: int = 7, seed: int = 0) -> Batch:
    """Rows of unequal weight; the last positions of some are padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = (torch.randint(0, VOCAB, (rows, TIME), generator=generator) for _ in range(2))
    weights = torch.ones(rows, TIME)
    weights[0, 3:] = weights[rows - 2, 10:] = 0.0
    return Batch(
        tokens=tokens,
        targets=targets,
        weights=weights,
        positions=torch.arange(TIME).expand(rows, -1),
        document_lengths=[(TIME,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )


def split(batch: Batch, sizes: list[int]) -> list[Batch]:
    parts, first = [], 0
    for size in sizes:
        rows = slice(first, first + size)
        names = ("tokens", "targets", "weights", "positions", "document_lengths", "samples", "sources")
        parts.append(replace(batch, **{name: getattr(batch, name)[rows] for name in names}))
        first += size
    return parts


def learn(engine: Engine, batches: list[Batch]) -> dict[str, Tensor]:
    """Sums and gradients."""
    engine.zero_gradients()
    sums = engine.forward_backward(batches, float(sum(batch.weights.sum() for batch in batches)), (1, 2))
    gradients = {name: p.grad.clone() for name, p in engine.named_parameters.items() if p.grad is not None}
    assert gradients.keys() == engine.shards.keys() - set(BIASES)
    return sums | gradients


def test_ragged_microbatches_equal_one_big_batch() -> None:
    engine, whole = make_double(), make_batch()
    one, many = learn(engine, [whole]), learn(engine, split(whole, [1, 3, 2, 1]))
    assert {"loss", "balance", "router_z"} < one.keys()
    for name, value in one.items():
        torch.testing.assert_close(many[name], value, rtol=1e-9, atol=1e-12 * float(value.abs().max()))


def test_auxiliary_losses_are_means_over_what_is_predicted() -> None:
    """With even scores the balance loss is 1 in each layer, so the sum is weight x layers x predictions."""
    engine, batch = make_engine(), make_batch()
    with torch.no_grad():
        for name, parameter in engine.model.named_parameters():
            if "router.weight" in name:
                parameter.zero_()
    found = learn(engine, [batch])
    assert float(found["balance"]) == pytest.approx(0.5 * 2 * float(batch.weights.sum()))


def test_padding_changes_nothing() -> None:
    engine, batch = make_double(), make_batch()
    other = replace(batch, tokens=batch.tokens.clone())
    other.tokens[0, 3:] = (other.tokens[0, 3:] + 7) % VOCAB
    one, two = learn(engine, [batch]), learn(engine, [other])
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-12, atol=1e-14)


def biases(engine: Engine) -> Tensor:
    return torch.stack([engine.shards[name].tensor.detach().clone() for name in BIASES])


def step(engine: Engine, batches: list[Batch], spoiled: bool = False) -> float:
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW(lr=1e-9))
    learn(engine, batches)
    if spoiled:
        next(p.grad for p in engine.named_parameters.values() if p.grad is not None)[0] = torch.nan
    engine.clip_gradients(1.0)
    return float(engine.step(optimizer))


@pytest.mark.parametrize("recompute", ["none", "block"])
def test_biases_follow_the_loads_of_the_whole_batch(recompute: str) -> None:
    """One microbatch or four, one that counts nothing, recomputed or not."""
    engine, batch = make_engine(recompute), make_batch()
    with torch.no_grad():
        routed: list[Tensor] = []
        for block in engine.model.blocks.values():
            block.mlp.router.register_forward_hook(lambda _m, _i, routing: routed.append(routing.experts))
        engine.evaluate(batch)
    counted = token_masks(batch)[0]
    loads = torch.stack([torch.bincount(experts[counted].flatten(), minlength=8) for experts in routed])
    expected = RATE * torch.sign(loads.sum(1, keepdim=True) / 8 - loads)
    assert step(engine, [*split(batch, [2, 3, 2]), empty_microbatch(batch)]) == 1.0
    assert torch.equal(biases(engine), expected)
    twin = make_engine(recompute)
    step(twin, [batch])
    assert torch.equal(biases(twin), expected)


def test_a_refused_step_moves_no_bias_and_evaluation_neither() -> None:
    engine, batch = make_engine(), make_batch()
    assert step(engine, [batch], spoiled=True) == 0.0
    engine.evaluate(batch)
    assert not biases(engine).any()


def test_a_frozen_router_keeps_its_bias() -> None:
    model = build_model(ModelConfig(layers=2, width=32, heads=2, mlp=EXPERTS), VOCAB)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("norm.weight"))
    engine = parallelize(model, ParallelConfig(), TrainConfig.model_validate({"precision": "fp32", "device": "cpu"}))
    engine.model.load_state_dict(make_engine().model.state_dict())
    batch = make_batch()
    engine.zero_gradients()
    engine.forward_backward([batch], float(batch.weights.sum()))
    engine.clip_gradients(1.0)
    engine.step(build_optimizer(engine.named_parameters, parameter_roles(model), AdamW()))
    assert not biases(engine).any()


def test_what_counts_as_padding() -> None:
    batch = make_batch(3)
    batch.weights[:] = torch.tensor([[1.0] * 6 + [0.0] * 10, [0.0, 1.0] * 8, [0.0] * 16])
    own, none = token_masks(batch)
    assert own.sum(1).tolist() == [6, 16, 0]
    assert none is None
    lengths = [(4, 2, 10), (8, 8), (16,)]
    source = Source(torch.zeros(3, 9), torch.zeros(3, 9), [(3, 2, 4), (5, 4), (9,)])
    _, theirs = token_masks(replace(batch, document_lengths=lengths, source=source))
    assert theirs is not None
    assert theirs.sum(1).tolist() == [5, 9, 0]
