"""What backward computes again: gradients to the bit, in every family, and bytes kept."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.model.build_model import build_model
from hornbook.model.init.init import initial_values
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig
from tests.parallel.families import VOCAB, grid, model_config

KINDS: dict[str, Any] = {
    "block": "block",
    "every second block": {"kind": "block", "every": 2},
    "selective": "selective",
}
FAMILIES = ("bert", "local", "t5", "bart", "prefix", "experts", "delta")


def make_engine(family: str, recompute: Any, precision: str = "fp32") -> Engine:
    config = model_config(family)
    model = build_model(config, VOCAB, "cpu")
    train = TrainConfig.model_validate({"precision": precision, "device": "cpu"})
    engine = parallelize(model, ParallelConfig.model_validate({"recompute": recompute}), train)
    engine.load_stream(initial_values(model, config, seed=3))
    return engine


def learn(engine: Engine, batches: list[Any]) -> tuple[Tensor, dict[str, Tensor]]:
    total = sum(float(batch.weights.sum()) for batch in batches)
    engine.zero_gradients()
    loss = engine.forward_backward(batches, total, (7, 1))["loss"]
    return loss, {name: p.grad for name, p in engine.named_parameters.items() if p.grad is not None}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_none_to_the_bit(marked_corpus: Path, family: str, kind: str, precision: str) -> None:
    """With dropout, and in microbatches."""
    batches = grid(family, str(marked_corpus), step=0, count=2, sequence=32)
    (loss, plain), (again_loss, again) = (
        learn(make_engine(family, recompute, precision), batches) for recompute in ("none", KINDS[kind])
    )
    assert torch.equal(loss, again_loss)
    assert plain.keys() == again.keys()
    assert [name for name in plain if not torch.equal(plain[name], again[name])] == []
