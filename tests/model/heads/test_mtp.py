"""Multi-token prediction: its loss and gradient written out, document by document, and what it must not change."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads.mtp import Join
from hornbook.model.init.init import initialize
from hornbook.model.transformer import Source, Transformer
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig
from tests.model.config.test_saved_bytes import EXPERTS, GPT2, compare

VOCAB, TIME = 64, 20
SIZES: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4}
LAMBDA = 0.3


def make_engine(model: dict[str, Any], weight: float = LAMBDA, *, double: bool = False) -> Engine:
    config = ModelConfig.model_validate(SIZES | model)
    train = {"precision": "fp32", "device": "cpu", "loss": {"mtp": weight}}
    engine = parallelize(build_model(config, VOCAB), ParallelConfig(), TrainConfig.model_validate(train))
    initialize(engine.model, config, seed=3)
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(3)  # so that all terms are large enough to be seen
    if double:
        engine.model.double()
        engine.model.compute_dtype = torch.float64
    return engine


def make_batch(lengths: list[tuple[int, ...]]) -> Batch:
    """Random tokens in documents of these lengths; the last document of the first row is padding, the first tokens of
    the second row are a prompt."""
    generator = torch.Generator().manual_seed(1)
    stored = torch.randint(0, VOCAB, (len(lengths), TIME + 1), generator=generator)
    weights = torch.ones(len(lengths), TIME)
    weights[0, TIME - lengths[0][-1] :] = 0.0
    weights[1, :4] = 0.0
    return Batch(
        tokens=stored[:, :-1],
        targets=stored[:, 1:].clone(),
        weights=weights,
        positions=torch.stack([torch.cat([torch.arange(each) for each in row]) for row in lengths]),
        document_lengths=lengths,
        samples=torch.arange(len(lengths)),
        sources=torch.zeros(len(lengths), dtype=torch.int64),
    )


FIELDS = ("tokens", "targets", "weights", "positions", "document_lengths", "samples", "sources")
LENGTHS = [(7, 1, 2, 6, 4), (20,), (3, 17)]


def norm(module: torch.nn.Module, x: Tensor) -> Tensor:
    weight, eps = module.get_parameter("weight"), 1e-6
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def written_out(model: Transformer, batch: Batch) -> Tensor:
    """The sum of both losses: each document alone, cut where tokens ahead are missing, with all logits at once."""
    assert model.mtp is not None
    assert model.embedding is not None
    assert model.head is not None
    total, first_loss = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for row, lengths in enumerate(batch.document_lengths):
        start = 0
        for length in lengths:
            tokens, targets, weights = (
                each[row, start : start + length] for each in (batch.tokens, batch.targets, batch.weights.double())
            )
            start += length
            states = model(tokens[None])[0]
            first_loss = first_loss + cross_entropy(model, states[0], targets, weights)
            vectors, last = model.embedding(tokens), states
            for ahead, number in enumerate(model.mtp.blocks, 1):
                if length <= ahead:
                    break
                rest = length - ahead
                join, x = model.mtp.joins[number] if model.mtp.joins else None, states[:, :rest]
                if join is not None:
                    assert isinstance(join, Join)
                    assert join.state_norm is not None
                    assert join.token_norm is not None
                    parts = norm(join.state_norm, last[:, :rest]), norm(join.token_norm, vectors[None, ahead:])
                    x = torch.cat(parts, -1) @ join.project.weight.T
                _, context = model._prepare(model, Source(tokens[None, :rest]), None)
                last = norm(model.mtp.norms[number], model.mtp.blocks[number](x, context)[0])
                total = total + cross_entropy(model, last[0], targets[ahead:], weights[ahead:])
    return first_loss + LAMBDA / model.mtp.depth * total


def cross_entropy(model: Transformer, states: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    assert model.head is not None
    chances = (states @ model.head.matrix.T).log_softmax(-1)
    return -(chances[torch.arange(len(targets)), targets] * weights).sum()


@pytest.mark.parametrize("kind", ["sequential", "parallel"])
def test_loss_and_gradient_are_those_written_out(kind: str) -> None:
    engine, batch = make_engine({"mtp": {"kind": kind, "depth": 3}}, double=True), make_batch(LENGTHS)
    weight = float(batch.weights.sum())
    terms = engine.forward_backward([batch], weight)
    found = {name: each.grad.clone() for name, each in engine.named_parameters.items() if each.grad is not None}
    engine.zero_gradients()
    expected = written_out(engine.model, batch)
    (expected / weight).backward()
    torch.testing.assert_close((terms["loss"] + terms["mtp"]).double(), expected, rtol=1e-12, atol=0)
    assert {*found} == {*engine.named_parameters}
    for name, each in engine.named_parameters.items():
        torch.testing.assert_close(found[name], each.grad, rtol=1e-9, atol=1e-14, msg=name)


def test_microbatches_add_up() -> None:
    batch = make_batch(LENGTHS)
    weight, found = float(batch.weights.sum()), list[dict[str, Tensor | None]]()
    rows = [replace(batch, **{f: getattr(batch, f)[i : i + 1] for f in FIELDS}) for i in range(3)]
    for batches in ([batch], rows):
        engine = make_engine({"mtp": {"kind": "sequential", "depth": 2}, "mlp": EXPERTS}, double=True)
        terms = engine.forward_backward(batches, weight)
        found.append(terms | {name: each.grad for name, each in engine.named_parameters.items()})
    for name in found[0]:
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-9, atol=1e-13, msg=name)


def test_with_weight_0_the_run_is_bit_for_bit_the_run_without_it() -> None:
    ends: list[dict[str, Tensor]] = []
    for model in ({"dropout": 0.1}, {"dropout": 0.1, "mtp": {"kind": "sequential", "depth": 2}}):
        engine = make_engine(model, weight=0.0)
        optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW(lr=0.01))
        for step in range(2):
            engine.zero_gradients()
            engine.forward_backward([make_batch(LENGTHS)], 40.0, (1, step))
            engine.clip_gradients(0.05)  # bites
            engine.step(optimizer)
        ends.append({name: each.detach() for name, each in engine.named_parameters.items()})
    assert {*ends[0]} < {*ends[1]}
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


def test_evaluation_and_text_do_not_compute_it() -> None:
    engine, batch = make_engine({"mtp": {"kind": "sequential"}}), make_batch(LENGTHS)
    with torch.no_grad():
        for parameter in engine.model.get_submodule("mtp").parameters():
            parameter.fill_(torch.nan)
    assert engine.evaluate(batch).isfinite().all()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["sequential", "parallel"])
def test_what_it_keeps_is_known_to_the_byte(kind: str, depth: int) -> None:
    part = {"mtp": {"kind": kind, "depth": depth}}
    for recompute, precision in (("none", "bf16"), ("block", "fp32"), ("selective", "bf16")):
        compare(part | {"mlp": EXPERTS}, recompute, precision, (2, 48))
    compare(GPT2 | part, "none", "bf16", (2, 48))
