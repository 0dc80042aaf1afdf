"""Losses of compared answers: value and every gradient against formulas written out over all logits."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hornbook.data.batch import CHOSEN, MISMATCHED, REJECTED, Batch, Compared, empty_microbatch, fill_rows
from hornbook.data.config.preferences import DPO, IPO, KTO, ORPO, Comparing, Reward
from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import RegressionHead
from hornbook.model.config.mlp_config import ExpertsConfig, GLUConfig
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.heads.preference import _orpo, _Sums
from hornbook.model.init.init import initialize
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig

Answers = dict[int, list[tuple[Tensor, int, Tensor]]]
"""Side -> log-probability, number of tokens and log-ratio of each answer."""
VOCAB, TIME = 64, 24
MODELS = {
    "tied": ModelConfig(layers=2, width=32, heads=2, head=LMHead(tied=True)),
    "glu": ModelConfig(layers=2, width=32, heads=2, mlp=GLUConfig(), head=LMHead(tied=False)),
    "grouped": ModelConfig(
        layers=1, width=32, heads=4, attention=FullAttentionConfig(kv_heads=2), head=LMHead(scale=0.5)
    ),
}
OBJECTIVES = [DPO(), DPO(beta=0.5, smoothing=0.2), IPO(), KTO(desirable=1.3), ORPO(), ORPO(beta=0.4, prompts=False)]


def make_engine(config: ModelConfig, precision: str = "fp32") -> Engine:
    model = build_model(config, VOCAB)
    settings = {"precision": precision, "device": "cpu"}
    engine = parallelize(model, ParallelConfig(), TrainConfig.model_validate(settings))
    initialize(model, config, seed=3)
    return engine


def make_batch(objective: Comparing, rows: int = 3, seed: int = 0) -> Batch:
    """Rows of 9 + 7 tokens, the first 4 of each a prompt, then padding; of KTO, sides in turn and a mismatch each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (rows, TIME), generator=generator)
    marks = torch.zeros(rows, TIME, dtype=torch.int64)
    for number, (begin, size) in enumerate(((0, 9), (9, 7)), 1):
        marks[:, begin : begin + size - 1] = 2 * number
        marks[:, begin + 3 : begin + size - 1] += 1
    sides = torch.tensor([[CHOSEN, REJECTED]] * rows)
    if isinstance(objective, KTO):
        sides = torch.tensor([[(CHOSEN, REJECTED)[row % 2], MISMATCHED] for row in range(rows)])
    chosen = sides.gather(1, (marks // 2 - 1).clamp(min=0)) == CHOSEN
    plain = chosen & (marks > 0) & ((marks % 2 == 1) | getattr(objective, "prompts", True))
    weights = (marks % 2 == 1) | (plain & isinstance(objective, ORPO))
    counts = int((sides == CHOSEN).sum()), int((sides == REJECTED).sum()), int(plain.sum())
    references = torch.randn(rows, 2, generator=generator) - 20
    return Batch(
        tokens=tokens,
        targets=tokens.roll(-1, 1),
        weights=weights.float(),
        positions=torch.cat([torch.arange(size) for size in (9, 7, 8)]).expand(rows, -1),
        document_lengths=[(9, 7, 8)] * rows,
        samples=torch.arange(rows) + 100 * seed,
        sources=torch.zeros(rows, dtype=torch.int64),
        compared=Compared(objective, marks, sides, references, counts),
    )


def written_out(objective: Comparing, logits: Tensor, batch: Batch) -> Tensor:
    """The mean loss, from log-softmax over all logits."""
    compared = batch.compared
    assert compared is not None
    tokens = logits.log_softmax(-1).gather(2, batch.targets[..., None])[..., 0]
    answers: Answers = {CHOSEN: [], REJECTED: [], MISMATCHED: []}
    for row, column in ((row, column) for row in range(len(tokens)) for column in range(2)):
        mine = compared.marks[row] == 2 * column + 3
        logp, size = tokens[row][mine].sum(), int(mine.sum())
        answers[int(compared.sides[row, column])].append((logp, size, logp - compared.references[row, column]))
    formulas: dict[type, Callable[..., Tensor]] = {DPO: dpo, IPO: ipo, KTO: kto, ORPO: orpo}
    value = formulas[type(objective)](objective, answers)
    if not isinstance(objective, ORPO):
        return value
    return value - tokens[:, 0 if objective.prompts else 3 : 8].mean()


def dpo(objective: DPO, answers: Answers) -> Tensor:
    found = []
    for chosen, rejected in zip(answers[CHOSEN], answers[REJECTED], strict=True):
        x = objective.beta * (chosen[2] - rejected[2])
        found.append(-(1 - objective.smoothing) * logsigmoid(x) - objective.smoothing * logsigmoid(-x))
    return torch.stack(found).mean()


def ipo(objective: IPO, answers: Answers) -> Tensor:
    found = []
    for (_, n, chosen), (_, m, rejected) in zip(answers[CHOSEN], answers[REJECTED], strict=True):
        found.append((chosen / n - rejected / m - 1 / (2 * objective.beta)) ** 2)
    return torch.stack(found).mean()


def kto(objective: KTO, answers: Answers) -> Tensor:
    z = torch.stack([each[2] for each in answers[MISMATCHED]]).mean().clamp(min=0).detach()
    found = [objective.desirable * (1 - torch.sigmoid(objective.beta * (r - z))) for _, _, r in answers[CHOSEN]]
    found += [objective.undesirable * (1 - torch.sigmoid(objective.beta * (z - r))) for _, _, r in answers[REJECTED]]
    return torch.stack(found).mean()


def orpo(objective: ORPO, answers: Answers) -> Tensor:
    found = []
    for (a, n, _), (b, m, _) in zip(answers[CHOSEN], answers[REJECTED], strict=True):
        odds = [torch.log(p.exp() / (1 - p.exp())) for p in (a / n, b / m)]
        found.append(-objective.beta * logsigmoid(odds[0] - odds[1]))
    return torch.stack(found).mean()


def gradients(engine: Engine) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in engine.named_parameters.items() if p.grad is not None}


def steps(engine: Engine, batches: list[Batch], total: float) -> tuple[dict[str, float], dict[str, Tensor]]:
    engine.zero_gradients()
    found = engine.forward_backward(batches, total)
    return {name: float(each) / total for name, each in found.items()}, gradients(engine)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda each: f"{each.kind}-{each.beta}")
def test_loss_and_gradients_are_those_of_the_formulas(model: str, objective: Comparing) -> None:
    engine, batch = make_engine(MODELS[model]), make_batch(objective)
    found, grads = steps(engine, [batch], 3.0)
    engine.zero_gradients()
    hidden, _ = engine.model(**engine.inputs(batch))
    assert engine.model.head is not None
    loss = written_out(objective, engine.model.head.logits(hidden), batch)
    loss.backward()
    assert found["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    for name, grad in gradients(engine).items():
        torch.testing.assert_close(grads[name], grad, atol=1e-5, rtol=1e-4, msg=name)
        assert float(grad.abs().max()) > 0


@pytest.mark.parametrize("objective", [each for each in OBJECTIVES if not isinstance(each, KTO)], ids=lambda e: e.kind)
def test_microbatches_and_rows_that_count_nothing_change_nothing(objective: Comparing) -> None:
    engine, batch = make_engine(MODELS["glu"]), make_batch(objective)
    assert batch.compared is not None
    whole, expected = steps(engine, [batch], 3.0)
    halves = []
    for rows in (slice(0, 1), slice(1, 3)):
        fields = {name: getattr(batch, name) for name in ("tokens", "targets", "weights", "positions")}
        compared = batch.compared
        own = (each[rows] for each in (compared.marks, compared.sides, compared.references))
        part = Batch(
            **{name: field[rows] for name, field in fields.items()},
            document_lengths=batch.document_lengths[rows],
            samples=batch.samples[rows],
            sources=batch.sources[rows],
            compared=Compared(objective, *own, counts=compared.counts),
        )
        halves.append(part)
    parts, grads = steps(engine, [fill_rows(halves[0], 2), halves[1], empty_microbatch(halves[0])], 3.0)
    for name, value in whole.items():
        assert parts[name] == pytest.approx(value, abs=1e-5), name
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad, atol=1e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("objective", [DPO(), KTO(), ORPO()], ids=lambda each: each.kind)
def test_experts_are_balanced_as_much_as_by_plain_text(objective: Comparing) -> None:
    config = ModelConfig(layers=1, width=32, heads=2, mlp=ExpertsConfig(count=4, active=1))
    engine, batch = make_engine(config), make_batch(objective)
    found, _ = steps(engine, [fill_rows(batch, 4), empty_microbatch(batch)], 3.0)
    plain = replace(batch, compared=None)
    expected, _ = steps(engine, [plain], float(batch.weights.sum()))
    assert expected["balance"] > 0
    assert found["balance"] == pytest.approx(expected["balance"], rel=1e-5)


def test_what_is_told_is_no_part_of_the_objective() -> None:
    engine, batch = make_engine(MODELS["glu"]), make_batch(DPO(beta=0.2))
    assert batch.compared is not None
    found, _ = steps(engine, [batch], 3.0)
    norm = engine.clip_gradients(0.0)
    assert engine._sums is not None
    assert float(engine._sums[0]) == pytest.approx(3 * found["loss"])
    assert float(norm) > 0
    losses = engine.evaluate(batch)
    logps = [-(losses * (batch.compared.marks == mark)).sum(1) for mark in (3, 5)]
    chosen, rejected = (0.2 * (each - batch.compared.references[:, k]) for k, each in enumerate(logps))
    assert found["reward_chosen"] == pytest.approx(float(chosen.mean()), abs=1e-5)
    assert found["reward_rejected"] == pytest.approx(float(rejected.mean()), abs=1e-5)
    assert found["reward_margin"] == pytest.approx(float((chosen - rejected).mean()), abs=1e-5)
    assert found["accuracy"] == pytest.approx(float((chosen > rejected).float().mean()))
    assert found["log_ratio"] == pytest.approx(float((chosen + rejected).mean()) / 0.4, abs=1e-5)


@pytest.mark.parametrize("certain", [3, 5])
def test_odds_of_an_answer_that_is_certain_are_finite(certain: int) -> None:
    logps = torch.tensor([-4.0, -5.0])
    logps[(certain - 3) // 2] = 0.0  # as float32 rounds it
    leaf = logps.requires_grad_(True)
    sides = torch.tensor([CHOSEN, REJECTED])
    value, _ = _orpo(ORPO(), _Sums(leaf, torch.tensor([2.0, 2.0]), sides, torch.zeros(2), (1, 1, 2)))
    value.backward()
    assert leaf.grad is not None
    assert bool(value.isfinite())
    assert bool(leaf.grad.isfinite().all())


def test_a_loss_scale_changes_no_value() -> None:
    batch, found = make_batch(DPO()), []
    for precision in ("fp32", "fp16"):
        found.append(steps(make_engine(MODELS["glu"], precision), [batch], 3.0)[0])
    for name, value in found[0].items():
        assert found[1][name] == pytest.approx(value, rel=2e-2, abs=2e-2), name


def test_a_reward_model_prefers_by_bradley_and_terry() -> None:
    config = ModelConfig(layers=1, width=32, heads=2, head=RegressionHead())
    batch, compared = make_batch(Reward()), make_batch(Reward()).compared
    assert compared is not None
    marks = compared.marks // 2 * 2
    marks[:, [8, 15]] = torch.tensor([3, 5])
    weights = (marks % 2 == 1).float()
    engine = make_engine(config)
    batch = replace(batch, weights=weights, compared=replace(compared, marks=marks))
    found, grads = steps(engine, [batch], 3.0)
    engine.zero_gradients()
    hidden, _ = engine.model(**engine.inputs(batch))
    assert engine.model.head is not None
    rewards = engine.model.head.logits(hidden)[..., 0]
    margin = rewards[:, 8] - rewards[:, 15]
    loss = -logsigmoid(margin).mean()
    loss.backward()
    assert found["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert found["reward_margin"] == pytest.approx(float(margin.detach().mean()), abs=1e-6)
    assert found["accuracy"] == pytest.approx(float((margin > 0).float().mean()))
    for name, grad in gradients(engine).items():
        torch.testing.assert_close(grads[name], grad, atol=1e-6, rtol=1e-4, msg=name)
