"""Answers that do the work for real: equal to what is planned, and ended where they take too much."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from hornbook.errors import HornbookError, UsageError
from hornbook.optim.config.optim import AdamW
from hornbook.studio.explore import measure, real
from hornbook.studio.explore.explorer import load_explorer
from hornbook.studio.explore.real import losses_of, path_of, proxies
from hornbook.studio.explore.recipes import small_recipe
from hornbook.studio.explore.tools import experts, optimizers
from hornbook.studio.explore.views import Bars, Facts, Line, Table


def test_what_a_step_keeps_is_what_is_planned() -> None:
    """Planned by arithmetic, traced by the trainer's own code, in a child process."""
    memory = load_explorer("memory")
    values = {"model": "tiny", "gpus": 2, "micro_batch": 1, "sequence": 128, "shard": "zero-3"}
    (table,) = measure.measured(memory, memory.ask(values)).views().values()
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["kept for backward", "weights", "gradients", "optimizer"]
    for name, planned, traced in table.rows:
        assert traced == pytest.approx(planned, rel=0.01), name


def test_what_four_ranks_hold_and_send_is_what_is_planned() -> None:
    """At each stage of ZeRO, with weights in 16 bits, whose gradients are summed in 32; what a step alone needs is gone
    after it, and zero-3 keeps gathered what is outside of blocks."""
    zero = load_explorer("zero")
    question = zero.ask({"precision": "bf16-pure", "optimizer": "adamw8bit"})
    state, messages = measure.measured(zero, question).views().values()
    assert isinstance(state, Table)
    assert isinstance(messages, Table)
    rows: Any = state.rows
    for stage, what, planned, measured in rows:
        freed = (stage, what) in {("zero-1", "weights"), ("zero-2", "weights"), ("zero-1", "gradients")}
        share = rows[-3][2] if freed else planned
        assert measured == pytest.approx(share, rel=1e-4), (stage, what)
    sent: Any = {row[0]: row[2:] for row in messages.rows}
    for stage in ("ddp", "zero-1", "zero-2"):
        assert sent[stage][1] == pytest.approx(sent[stage][0], rel=1e-4)
    outside = 2 * (4096 + 1) * 256 * 3 / 4  # bytes of the tied embedding and the last norm that others send
    assert sent["zero-3"][0] - sent["zero-3"][1] == pytest.approx(outside, rel=1e-4)


def test_a_measurement_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.2)
    zero = load_explorer("zero")
    with pytest.raises(HornbookError, match="it took more than"):
        measure.measured(zero, zero.question())


def test_a_refusal_of_the_child_is_told() -> None:
    memory = load_explorer("memory")
    with pytest.raises(HornbookError, match="those of bf16-pure are bf16"):
        measure.measured(memory, memory.ask({"model": "tiny", "lora": True, "precision": "bf16-pure"}))
    with pytest.raises(UsageError, match="measures nothing"):
        measure.measured(load_explorer("pipeline"), load_explorer("pipeline").question())


def _path(kind: str, surface: str = "ravine", **values: float) -> list[tuple[float, float]]:
    question = load_explorer("optimizers").ask({"kinds": kind, "surface": surface, **values})
    chosen = optimizers.SURFACES[surface]
    return path_of(optimizers.configs(question)[kind], chosen.loss, chosen.start, 20, question.noise)


def test_sgd_descends_a_surface_by_its_formula() -> None:
    """Heavy ball: the momentum is 0.9 of itself and the gradient, (x / 50, 2 y) in the ravine."""
    x, y, momentum = -8.0, 1.5, [0.0, 0.0]
    for place in _path("sgd"):
        assert place == pytest.approx((x, y), rel=1e-4, abs=1e-6)
        momentum = [0.9 * momentum[0] + x / 50, 0.9 * momentum[1] + 2 * y]
        x, y = x - 0.1 * momentum[0], y - 0.1 * momentum[1]


def test_signs_alone_move_lion_and_adams_first_step() -> None:
    for (x0, y0), (x1, y1) in pairwise(_path("lion", rate=0.01)):
        assert (abs(x1 - x0), abs(y1 - y0)) == pytest.approx((0.01, 0.01), rel=1e-4)
    start, first, *_ = _path("adamw", "banana", rate=0.01)
    assert start == (-1.2, 1.0)
    assert first == pytest.approx((-1.2 + 0.01, 1.0 + 0.01), rel=1e-4)  # the gradient there is (-215.6, -88)


def test_noise_moves_the_path_and_decay_pulls_to_zero() -> None:
    assert _path("sgd", noise=0.5) != _path("sgd")
    assert _path("sgd", noise=0.5) == _path("sgd", noise=0.5)
    x, _ = _path("lion", rate=0.01, decay=0.5)[1]
    assert x == pytest.approx(-8 * (1 - 0.01 * 0.5) + 0.01, rel=1e-5)


def test_a_path_that_diverges_ends_where_it_leaves_the_surface() -> None:
    surface = optimizers.SURFACES["banana"]
    path = _path("sgd", "banana", rate=1)
    assert not math.isfinite(surface.loss(*path[-1]))
    inside = surface.inside(path)
    assert inside == path[: len(inside)]
    assert 0 < len(inside) < 5
    ravine = optimizers.SURFACES["ravine"]
    assert ravine.inside([*_path("sgd"), (math.nan, 0.0)]) == _path("sgd")
    assert Line(name="loss", x=[0, 1, 2], y=[1.0, math.inf, math.nan]).y == [1.0, None, None]


def test_lines_of_a_surface_have_its_loss() -> None:
    for surface in optimizers.SURFACES.values():
        assert surface.loss(*surface.minimum) == 0
        line = surface.level(1.5)
        assert [surface.loss(*place) for place in zip(line.x, line.y, strict=True)] == pytest.approx(
            [1.5] * len(line.x)
        )


def test_a_small_model_learns_with_each_optimizer_from_one_start() -> None:
    courses = [
        losses_of(
            small_recipe(), optimizers.OPTIMIZER.validate_python({"kind": kind}), "To be, or not to be.", [rate] * 12
        )
        for kind, rate in (("sgd", 0.1), ("muon", 0.02))
    ]
    assert courses[0][0] == courses[1][0] == pytest.approx(math.log(256), rel=0.05)
    assert all(course[-1] < course[0] - 0.5 for course in courses)


def test_a_small_model_stays_where_the_rate_is_nothing() -> None:
    """The rates of a schedule are those of the steps."""
    first, *others = losses_of(small_recipe(), AdamW(weight_decay=0), "To be, or not to be.", [0.0, 0.0, 0.01, 0.0])
    assert others[:2] == [first, first]
    assert others[2] < first


def test_small_models_show_that_noise_was_in_the_way() -> None:
    """Every second passage has random bytes: what learned the clean passages alone knows clean text better."""
    clean = b"".join(b"%d times %d is %d. " % (a, b, a * b) for a in range(40) for b in range(40))
    noise = np.random.default_rng(0).bytes(4 * len(clean))
    texts, scored = {"all": clean + noise, "kept": clean}, {"clean": clean, "noise": noise}
    steps, losses = proxies(small_recipe(), texts, scored, 0.0)
    assert steps == 20
    assert (losses["kept"]["clean"] < losses["all"]["clean"]).all()
    assert losses["kept"]["noise"].mean() > losses["all"]["noise"].mean()


def test_two_small_models_are_scored_on_documents_that_none_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[Any]()

    def learn(_: object, texts: Any, scored: Any, seconds: float) -> Any:
        given.extend([texts, scored, seconds])
        return 7, {name: {each: np.array([1.0, 2.0]) * math.log(2) for each in scored} for name in texts}

    monkeypatch.setattr(real, "proxies", learn)
    tool = load_explorer("cleaning")
    assert tool.measure is not None
    losses, difference = tool.measure(tool.ask({"min_words": 60})).views().values()
    texts, scored, seconds = given
    assert seconds < measure.SECONDS
    assert scored.keys() == {"good", "bad"}
    passages = {each for text in scored.values() for each in text.split(b"\n\n") if len(each) > 200}
    assert len(passages) > 9
    assert not any(each in text for each in passages for text in texts.values())
    assert isinstance(losses, Table)
    assert [row[2:] for row in losses.rows] == [[1.5, 1.5]] * 2
    assert isinstance(difference, Facts)
    assert [each.value for each in difference.facts] == [0.0] * 4
    with pytest.raises(UsageError, match="leave nothing to learn"):
        tool.measure(tool.ask({"min_words": 300, "min_stop_words": 8, "min_alphabetic_words": 1.0}))


def test_routers_learn_to_use_all_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By both ways of balancing; in this process, for fewer steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the child
    monkeypatch.setattr(experts, "STEPS", 40)
    tool = load_explorer("experts")
    assert tool.measure is not None
    try:
        found = tool.measure(tool.ask({"balance_loss": 0.1, "balance_rate": 0.01}))
    finally:
        torch.set_num_threads(threads)
    table, bars = found.views().values()
    assert isinstance(table, Table)
    assert isinstance(bars, Bars)
    rows: Any = table.rows
    evenness = {(row[0], row[1]): row[4] for row in rows}
    losses = {row[0]: row[2] for row in rows}
    for name in ("loss", "bias"):
        assert losses[name] < losses["nothing"] - 1
        assert all(evenness[name, layer] > evenness["nothing", layer] for layer in (0, 1))
    choices = experts.ROWS * experts.SEQUENCE * 2
    dropped = [row[-1] for row in rows]
    assert [each.total for each in bars.bars] == pytest.approx([choices * (1 - share) for share in dropped])
