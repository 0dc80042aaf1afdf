"""Evaluation on an emulated GPU: what a CPU measures, and no wait for a batch before the next one is launched."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from hornbook.data.batch import Batch
from hornbook.evals.loss import LossTask
from hornbook.evals.task import score_batches
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World
from hornbook.settings.training import TrainConfig
from tests.helpers.emulated_tensor import CUDA, Waits
from tests.parallel.test_device_step import FAMILIES, ROWS, SIZES, TIME, VOCAB, batch

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
LABELS = {
    "tags": {"kind": "token_classification", "labels": ["a", "b"]},
    "classes": {"kind": "classification", "labels": ["a", "b", "c"]},
    "span": {"kind": "span"},
}


def make_engine(model: dict[str, Any], device: torch.device, precision: str = "fp32") -> Engine:
    config = ModelConfig.model_validate({**SIZES, "layers": 1, **model})
    built = build_model(config, VOCAB)
    settings = TrainConfig.model_validate({"precision": precision, "sequence": TIME})
    engine = parallelize(built, ParallelConfig(), settings, World(device))
    engine.load_stream(initial_values(built, config, 1))
    return engine


def batches(count: int, *, source: bool, documents: bool = True) -> list[Batch]:
    return [batch(ROWS - number % 2, documents=documents, source=source) for number in range(count)]


def score(engine: Engine, parts: list[Batch], waits: Waits) -> tuple[dict[str, Any], Counter[str]]:
    waits.clear()
    found = LossTask("text", parts, torch.ones(VOCAB, dtype=torch.int64)).score(engine, engine.world)
    return found.as_dict(), waits.places()


@pytest.mark.parametrize("name", FAMILIES)
def test_no_wait_for_a_batch(name: str, emulated_cuda: Waits) -> None:
    """Five batches wait as often as two: for the last one, and to bring the ranks' scores together."""
    model, source = FAMILIES[name][0], FAMILIES[name][0].get("kind") == "encoder_decoder"
    want = LossTask("text", batches(5, source=source), torch.ones(VOCAB, dtype=torch.int64))
    here, there = make_engine(model, CPU), make_engine(model, CUDA, "bf16")
    score(there, batches(2, source=source), emulated_cuda)
    (_, few), (got, many) = (score(there, batches(count, source=source), emulated_cuda) for count in (2, 5))
    assert few == many
    assert got == pytest.approx(want.score(here, here.world).as_dict(), rel=1e-2)


@pytest.mark.parametrize("head", LABELS.values(), ids=list(LABELS))
def test_no_wait_for_a_batch_of_labels(head: dict[str, Any], emulated_cuda: Waits) -> None:
    engine = make_engine({"head": head}, CUDA)

    def waits(count: int) -> Counter[str]:
        emulated_cuda.clear()
        parts = [replace(each, targets=each.targets % 2) for each in batches(count, source=False)]
        score_batches(engine.world, parts, 1, engine.outputs, lambda _, losses, __: losses.sum().view(1, 1).numpy())
        return emulated_cuda.places()

    waits(2)
    assert waits(2) == waits(5)


@pytest.mark.parametrize("model", [{}, {"kind": "encoder", "head": {"kind": "masked"}}], ids=["causal", "masked"])
def test_no_wait_for_likeliest_tokens(model: dict[str, Any], emulated_cuda: Waits) -> None:
    engine, parts = make_engine(model, CUDA), batches(3, source=False)
    want = [make_engine(model, CPU).predictions(each) for each in parts]
    emulated_cuda.clear()
    found = [engine.predictions(each) for each in parts]
    assert not emulated_cuda.places(draining=False)
    for pair, mine in zip(want, found, strict=True):
        for one, other in zip(pair, mine, strict=True):
            assert torch.allclose(one, other.cpu(), rtol=1e-3, atol=1e-4)
