"""A runner from outside the package: two stages of a decoder in one process, in the orders that pipelines have."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hornbook.data.batch import Batch, empty_microbatch
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.forward_context import Context
from hornbook.model.init.init import initialize
from hornbook.model.mlp.experts import Experts
from hornbook.model.transformer import Transformer, add_auxiliary
from hornbook.parallel.axes.expert.load_balance import loss_names
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.runner import Step
from hornbook.settings.training import TrainConfig

VOCAB = 64
Action = tuple[str, int, int]
"""(forward or backward, stage, microbatch)."""
Schedule = Callable[[int], Iterator[Action]]

EXPERTS = {"kind": "experts", "count": 4, "active": 2, "hidden": 16, "balance_loss": 0.01, "z_loss": 0.001}
SIGMOID = {**EXPERTS, "router": {"kind": "sigmoid", "balance_rate": 0.02}, "z_loss": 0}
MODELS = {
    "tied": {"layers": 4},
    "untied": {"layers": 3, "head": {"kind": "lm", "tied": False}},
    "dropout": {"layers": 4, "dropout": 0.2, "position": {"kind": "learned", "length": 32}},
    "experts": {"layers": 2, "mlp": EXPERTS},
    "sigmoid": {"layers": 2, "mlp": SIGMOID},
}


def gpipe(microbatches: int) -> Iterator[Action]:
    """All forward, then all backward (Huang et al. 2019, arXiv 1811.06965)."""
    yield from (("forward", stage, number) for number in range(microbatches) for stage in (0, 1))
    yield from (("backward", stage, number) for number in range(microbatches) for stage in (1, 0))


def one_forward_one_backward(microbatches: int) -> Iterator[Action]:
    """1F1B (Narayanan et al. 2021, arXiv 2104.04473): the first stage is one microbatch ahead."""
    yield "forward", 0, 0
    for number in range(microbatches):
        yield "forward", 1, number
        if number + 1 < microbatches:
            yield "forward", 0, number + 1
        yield "backward", 1, number
        yield "backward", 0, number


def halves(model: Transformer) -> tuple[Transformer, Transformer]:
    """The model in two stages; blocks keep their names, parameters are those of the model."""
    blocks = list(model.blocks.items())
    middle = len(blocks) // 2
    shared: dict[str, Any] = {"kind": model.kind, "bias": model.bias, "dropout": model.dropout}
    inputs: dict[str, Any] = {"embedding": model.embedding, "positions": model.positions, "entrance": model.entrance}
    none: dict[str, Any] = dict.fromkeys(inputs)
    first = Transformer(head=None, blocks=dict(blocks[:middle]), norm=None, **shared, **inputs)
    second = Transformer(head=model.head, blocks=dict(blocks[middle:]), norm=model.norm, **shared, **none)
    return first, second


class TwoStages:
    """A `hornbook.parallel.runner.Runner`. Between the stages goes a tuple of plain tensors, whose names both know."""

    def __init__(self, model: Transformer, schedule: Schedule) -> None:
        self.stages, self.schedule = halves(model), schedule
        experts = [module for module in self.stages[0].modules() if isinstance(module, Experts)]
        self.names = [*loss_names(self.stages[0]), *(each.load_name for each in experts if each.balance_rate)]

    def run(self, step: Step) -> None:
        """Every microbatch forward and backward."""
        self.step = step
        self.sent: dict[int, tuple[Tensor, ...]] = {}
        self.received: dict[int, tuple[Tensor, ...]] = {}
        self.objectives: dict[int, Tensor] = {}
        for direction, stage, number in self.schedule(step.num_microbatches):
            getattr(self, f"{direction}_{stage}")(number)
        assert not self.sent
        assert not self.received

    def forward_0(self, number: int) -> None:
        """From tokens to what is sent."""
        self.step.begin(number)
        hidden, auxiliary = self.stages[0](**self.step.inputs(number))
        self.sent[number] = hidden, *(auxiliary[name] for name in self.names)
        received = tuple(tensor.detach() for tensor in self.sent[number])
        self.received[number] = tuple(each.requires_grad_(each.is_floating_point()) for each in received)

    def forward_1(self, number: int) -> None:
        """From what was received to the objective."""
        hidden, *others = self.received[number]
        auxiliary = dict(zip(self.names, others, strict=True))
        hidden, found = self.stages[1](**{**self.step.inputs(number), "tokens": hidden})
        add_auxiliary(auxiliary, found)
        self.objectives[number] = self.step.objective(hidden, auxiliary, number)

    def backward_1(self, number: int) -> None:
        """From the objective to the gradients of what was received."""
        self.objectives.pop(number).backward()

    def backward_0(self, number: int) -> None:
        """From these to the gradients of the first stage."""
        pairs = zip(self.sent.pop(number), self.received.pop(number), strict=True)
        sent, grads = zip(*((sent, got.grad) for sent, got in pairs if got.grad is not None), strict=True)
        torch.autograd.backward(sent, grads)
        self.step.end()


def make_engine(name: str) -> Engine:
    config = ModelConfig.model_validate({"width": 32, "heads": 2, "head": LMHead(), **MODELS[name]})
    model = build_model(config, VOCAB)
    train = {"precision": "fp32", "device": "cpu", "loss": {"z_loss": 1e-4, "smoothing": 0.1}}
    engine = parallelize(model, ParallelConfig(), TrainConfig.model_validate(train))
    initialize(model, config, seed=3)
    return engine


def make_batches(count: int) -> list[Batch]:
    """Of one to three rows, with padding; the last one stands in for none."""
    generator, batches = torch.Generator().manual_seed(1), []
    for number in range(count):
        rows, sequence = 1 + number % 3, 16
        tokens = torch.randint(0, VOCAB, (rows, sequence + 1), generator=generator)
        weights = torch.ones(rows, sequence)
        weights[0, 16 - number :] = 0.0
        batches.append(
            Batch(
                tokens=tokens[:, :-1],
                targets=tokens[:, 1:],
                weights=weights,
                positions=torch.arange(sequence).expand(rows, -1),
                document_lengths=[(sequence,)] * rows,
                samples=torch.arange(rows) + 10 * number,
                sources=torch.zeros(rows, dtype=torch.int64),
            )
        )
    return [*batches, empty_microbatch(batches[0])]


def step_of(engine: Engine, batches: list[Batch]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Losses and gradients."""
    engine.zero_gradients()
    losses = engine.forward_backward(batches, float(sum(batch.weights.sum() for batch in batches)), (5, 7))
    gradients = {name: each.grad for name, each in engine.named_parameters.items()}
    return losses, {name: each.clone() for name, each in gradients.items() if each is not None}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
def test_two_stages_equal_one_microbatch_after_the_other(name: str, schedule: Schedule) -> None:
    """To the bit, but for a tied matrix: its two gradients of a microbatch are not added to each other first."""
    engine, batches = make_engine(name), make_batches(5)
    losses, gradients = step_of(engine, batches)
    assert losses.keys() == set(engine.loss_names)
    engine.runner = TwoStages(engine.model, schedule)
    found, staged = step_of(engine, batches)
    assert found == losses
    assert staged.keys() == gradients.keys() == engine.named_parameters.keys()
    for parameter, gradient in gradients.items():
        scale = 1e-6 * float(gradient.abs().max()) if parameter == "embedding.weight" and name != "untied" else 0.0
        torch.testing.assert_close(staged[parameter], gradient, rtol=0, atol=scale, msg=parameter)
    engine.clip_gradients(1.0)


class Sometimes(nn.Module):
    """An MLP from outside that says no names of its losses, and gives one for rows of two and more alone."""

    auxiliary = True

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor, _context: Context) -> tuple[Tensor, dict[str, Tensor]]:
        return self.mlp(x), {"many": x.new_ones(len(x))} if len(x) > 1 else {}


def test_losses_that_were_not_named_count_from_when_they_come() -> None:
    engine, batches = make_engine("tied"), make_batches(5)
    expected, _ = step_of(engine, batches)
    block = engine.model.blocks["1"]
    block.mlp = Sometimes(block.get_submodule("mlp"))
    losses, _ = step_of(engine, batches)
    assert float(losses["many"]) == sum(float(batch.weights.sum()) for batch in batches if len(batch.tokens) > 1)
    assert losses["loss"] == expected["loss"]
    assert engine.loss_names == ("loss", "z_loss", "many")


@torch.no_grad()
def test_a_stage_caches_its_own_layers() -> None:
    model = make_engine("tied").model.eval()
    first, second = halves(model)
    tokens = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(2))
    whole, caches = KVCache(), (KVCache(), KVCache())
    for part in tokens.split((4, 1, 1, 3), 1):
        expected, _ = model(part, cache=whole)
        hidden, _ = first(part, cache=caches[0])
        found, _ = second(hidden, cache=caches[1])
        assert torch.equal(found, expected)
