"""Elastic weight consolidation: its closed form, the Fisher information by enumeration, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hornbook.data.batch import Batch
from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.fisher import FisherFile, fisher_diagonal, write_fisher
from hornbook.parallel.gradients.penalties import Anchor, Penalties
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World
from hornbook.settings.training import ElasticAnchor, LossConfig, TrainConfig
from tests.parallel.cases import whole_shard

VOCAB, TIME = 7, 3


def task(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    """Features whose columns are orthogonal, of different lengths, and targets; float64."""
    draw = torch.Generator().manual_seed(seed)
    orthogonal, _ = torch.linalg.qr(torch.randn(rows, 4, generator=draw, dtype=torch.float64))
    x = orthogonal * torch.tensor([1.0, 3.0, 0.5, 7.0], dtype=torch.float64)
    return x, torch.randn(rows, generator=draw, dtype=torch.float64)


def test_one_task_after_the_other_is_both_at_once() -> None:
    """Linear regression with unit noise: the Fisher information of a row x is x x', diagonal in sum here."""
    (x1, y1), (x2, y2) = task(1, 20), task(2, 12)
    first = torch.linalg.lstsq(x1, y1).solution
    joint = torch.linalg.solve(x1.T @ x1 + x2.T @ x2, x1.T @ y1 + x2.T @ y2)
    weights = nn.Parameter(joint.clone())
    # Both losses are means over rows: 20 rows of the first task count as much as 20 of the second.
    loss = LossConfig(anchor=ElasticAnchor(fisher="x", weight=20 / 12))
    penalties = Penalties(loss, {"w": whole_shard(weights)}, World(torch.device("cpu")), exact=False)
    penalties.anchor(lambda _: Anchor(x1.square().sum(0) / 20, first))

    def objective(at: Tensor) -> Tensor:
        weights.data.copy_(at)
        weights.grad = x2.T @ (x2 @ at - y2) / 12
        return penalties.add(1.0)["anchor"]

    value = objective(joint)
    assert weights.grad is not None
    assert weights.grad.abs().max() < 1e-14, "the objective of the second task is least at the joint solution"
    expected = 0.5 * (20 / 12) * (x1.square().sum(0) / 20 * (joint - first).square()).sum()
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    objective(first)
    assert weights.grad.abs().max() > 1e-2


@pytest.fixture
def engine() -> Engine:
    config = ModelConfig(layers=1, width=8, heads=2, vocab=VOCAB)
    model = build_model(config, VOCAB, "meta")
    engine = parallelize(model, ParallelConfig(), TrainConfig(device="cpu", precision="fp32"))
    engine.load_stream(initial_values(build_model(config, VOCAB, "meta"), config, 1))
    for each in engine.model.parameters():
        each.data.mul_(3)
    return engine


def row() -> Batch:
    """Three tokens, of which the last predicts nothing."""
    tokens, weights = torch.tensor([[1, 4, 2]]), torch.tensor([[1.0, 1.0, 0.0]])
    numbers = torch.zeros(1, dtype=torch.int64)
    return Batch(tokens, tokens, weights, torch.arange(TIME)[None], [(TIME,)], numbers, numbers)


def test_the_diagonal_is_that_of_all_labels_by_their_probability(engine: Engine) -> None:
    model, batch = engine.model, row()
    assert model.head is not None
    names = [name for name, _ in model.named_parameters()]
    exact = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    hidden, _ = model(**engine.inputs(batch))
    logs = model.head.logits(hidden)[0].log_softmax(-1)
    for position in range(TIME - 1):
        for label in range(VOCAB):
            found = torch.autograd.grad(logs[position, label], list(model.parameters()), retain_graph=True)
            for name, gradient in zip(names, found, strict=True):
                exact[name] += logs[position, label].exp().detach() * gradient.square() / (TIME - 1)
    sampled = fisher_diagonal(engine, (batch for _ in range(1500)), seed=3)
    assert sampled.tokens == 1500 * (TIME - 1)
    total = sum(float(each.sum()) for each in exact.values())
    assert total > 1e-3
    assert sum(float(each.sum()) for each in sampled.importance.values()) == pytest.approx(total, rel=0.05)
    for name, each in exact.items():
        distance = (sampled.importance[name] - each).norm() / each.norm().clamp(min=1e-12)
        assert distance < 0.2 or each.norm() < 1e-6, name


def test_a_file_knows_the_weights_it_was_taken_at(engine: Engine, tmp_path: Path) -> None:
    found = fisher_diagonal(engine, [row()], seed=1)
    path = tmp_path / "fisher.safetensors"
    write_fisher(path, found, engine)
    file = FisherFile(path)
    name = next(iter(found.importance))
    assert torch.equal(file.read(name).importance, found.importance[name])
    assert torch.equal(file.read(name).weights, dict(engine.model.named_parameters())[name])
    with pytest.raises(UsageError, match="taken at other weights than those of some/model: `hornbook fisher"):
        file.check("0" * 32, Path("some/model"))
    with pytest.raises(UsageError, match="is not there: `hornbook fisher"):
        FisherFile(tmp_path / "none")


def test_no_text_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="no text"):
        fisher_diagonal(engine, [], seed=1)
