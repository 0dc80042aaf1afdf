"""Every family behind the engine: ragged microbatches, ranks, exact sums, recomputation."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.model.build_model import build_model
from hornbook.model.heads.losses import loss_and_grad_
from hornbook.model.init.init import initial_values
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig
from tests.parallel.families import MODELS, VOCAB, grid, model_config, rows
from tests.parallel.trajectory import LAYOUTS, Result, Run, compare, largest_of, perform, same_bits
from tests.ranks import RankServer

SEQUENCE, STEPS = 32, 2
HARDEST = "t5 of experts"
"""The one that every change is tested with on ranks; the others are slow together."""
EACH = [pytest.param(name, marks=() if name == HARDEST else pytest.mark.slow) for name in MODELS]
Performer = Callable[[Run], Result]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory, marked_corpus: Path) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        run = replace(run, corpus=str(marked_corpus), steps=STEPS, sequence=SEQUENCE)
        return perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")

    return result


@pytest.mark.parametrize("family", EACH)
@pytest.mark.parametrize("layout", ["none", "everything"])
def test_two_ranks_differ_from_one_process_in_the_last_digits(done: Performer, family: str, layout: str) -> None:
    run = Run(2, **LAYOUTS[layout], family=family, precision="fp64", microbatches=3)
    difference = compare(done(run), done(run.alone))
    assert largest_of([difference.losses, difference.norms, difference.weights]) < 1e-9, difference


@pytest.mark.parametrize("family", EACH)
@pytest.mark.parametrize(("layout", "recompute"), [("none", "none"), ("everything", "block")])
def test_exact_sums_have_the_same_bits_on_two_ranks(done: Performer, family: str, layout: str, recompute: str) -> None:
    """Of three microbatches one rank has two; the other keeps it company with one that counts nothing."""
    run = Run(2, **LAYOUTS[layout], family=family, exact=True, recompute=recompute, microbatches=3)
    found, expected = done(run), done(replace(run.alone, recompute="none"))
    assert same_bits(found, expected), compare(found, expected)
    assert found.applied == [1.0] * STEPS


def make_engine(family: str, recompute: str = "none", dtype: torch.dtype = torch.float64) -> Engine:
    model = build_model(model_config(family), VOCAB, "cpu").to(dtype)
    train = TrainConfig.model_validate({"precision": "fp32", "device": "cpu"})
    engine = parallelize(model, ParallelConfig.model_validate({"recompute": recompute}), train)
    model.compute_dtype = dtype
    engine.load_stream(initial_values(model, model_config(family), seed=3))
    return engine


def learn(engine: Engine, batches: list[Batch]) -> dict[str, Tensor]:
    """Sums and gradients; every parameter that is trained has one."""
    engine.zero_gradients()
    total = sum(float(batch.weights.sum()) for batch in batches)
    sums = engine.forward_backward(batches, total, (1, 2))
    gradients = {name: each.grad for name, each in engine.named_parameters.items() if each.grad is not None}
    assert gradients.keys() == engine.named_parameters.keys()
    return sums | gradients


@pytest.mark.parametrize("family", MODELS)
def test_ragged_microbatches_equal_one_big_batch(family: str, marked_corpus: Path) -> None:
    engine = make_engine(family)
    (whole,), parts = (rows(family, str(marked_corpus), 5, 7, size, SEQUENCE) for size in (7, 3))
    assert len(parts) == 3
    one, many = learn(engine, [whole]), learn(engine, parts)
    largest = max(float(one[name].abs().max()) for name in engine.named_parameters)
    for name, value in one.items():
        noise = 1e-12 * float(value.abs().max()) + 1e-16 * largest  # the gradient of a key's bias is 0 but for rounding
        torch.testing.assert_close(many[name], value, rtol=1e-9, atol=noise)


@pytest.mark.parametrize("family", MODELS)
def test_recomputation_changes_no_bit(family: str, marked_corpus: Path) -> None:
    batches = grid(family, str(marked_corpus), 0, 2, SEQUENCE)
    plain, again = (learn(make_engine(family, recompute, torch.float32), batches) for recompute in ("none", "block"))
    assert all(torch.equal(again[name], value) for name, value in plain.items())


def test_a_masked_model_computes_logits_of_its_targets_alone(
    marked_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and in evaluation, and the losses are those of all logits."""
    engine, (batch,) = make_engine("bert"), rows("bert", str(marked_corpus), 0, 4, 4, SEQUENCE)
    head, heights = engine.model.head, list[int]()
    assert head is not None
    with engine.evaluation_mode() as model:
        hidden, _ = model(batch.tokens, batch.positions, batch.document_lengths)
        logits = head.logits(hidden)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")

    def seen(logits: Tensor, *rest: Any) -> Any:
        heights.append(len(logits))
        return loss_and_grad_(logits, *rest)

    monkeypatch.setattr(head, "loss_and_grad_", seen)
    learn(engine, [batch])
    found = engine.evaluate(batch)
    count = int(batch.weights.sum())
    assert heights == [count, count]
    assert 0 < count < batch.tokens.numel() / 4
    torch.testing.assert_close(found.flatten(), (expected * batch.weights.flatten()).float(), rtol=1e-5, atol=1e-6)
    assert not engine.evaluate(replace(batch, weights=torch.zeros_like(batch.weights))).any()
