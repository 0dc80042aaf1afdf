"""Settings at fault: changes that do harm, and rates that are too high from the start."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import DivergedError, Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.doctor.check_run import check_run
from hornbook.run.guard.guard import Guard, Seen
from hornbook.run.job.control import Request, write_request
from hornbook.run.ledger.ledger import Ledger
from hornbook.settings.resolve import resolve
from hornbook.settings.training import GuardConfig

Curve = Callable[[int], float]
LONGER = ("train.tokens=20480", "optim.lr=3e-3", "checkpoint.every=80")
"""160 steps."""


def learn(step: int) -> float:
    """A loss that falls from 6.2 to 4.2 in 100 steps."""
    return 4.2 + 2.0 * 0.96**step


def judged(curve: Curve, count: int, guard: Guard, first: int = 1, norm: Curve = lambda _: 0.2) -> Guard:
    """A guard after steps `first` to `count` of a curve with noise, or after its first finding."""
    draw = random.Random(1)
    for step in range(first, count + 1):
        loss = curve(step) + draw.gauss(0, 0.05)
        list(guard.judge(Seen(step, loss, norm(step), True, 0, clock=step, rows=1, targets=1000)))
        if guard.pending is not None:
            break
    return guard


def guard_of(unigram: float | None = None, steps: int = 600) -> Guard:
    return Guard(GuardConfig(mode="auto"), steps=steps, warmup=10, unigram=unigram)


@pytest.mark.parametrize(
    ("after", "is_harm"),
    [
        (lambda _: 5.4, True),  # frequencies alone
        (lambda step: 20 * 0.97 ** (step - 100) + 5.2, True),  # a fall that does not reach what was known
        (lambda step: 4.2 + 1.5 * 0.9 ** (step - 100), False),  # a jump that is over
        (lambda _: 4.45, False),  # what annealing gained
    ],
)
def test_a_change_does_harm_if_the_loss_stays_above_what_it_was(after: Curve, is_harm: bool) -> None:
    guard = judged(learn, 100, guard_of())
    guard.change(100, patience=0)
    pending = judged(after, 400, guard, first=101).pending
    assert (pending is not None) == is_harm
    if pending is not None:
        assert (pending.rule, pending.onset) == ("change", 101)
        assert pending.step in (102, 131)


def test_a_rate_that_warms_up_again_explains_as_many_steps() -> None:
    for patience in (0, 100):
        guard = judged(learn, 100, guard_of())
        guard.change(100, patience)
        pending = judged(lambda step: 5.4 if step < 190 else 4.2, 400, guard, first=101).pending
        assert (pending is None) == (patience == 100)


def test_a_second_change_is_measured_by_the_loss_before_the_first() -> None:
    guard = judged(learn, 100, guard_of())
    for step in (100, 110):
        guard.change(step, patience=0)
        judged(lambda _: 5.4, step + 10, guard, first=step + 1)
    pending = judged(lambda _: 5.4, 400, guard, first=121).pending
    assert pending is not None
    assert (pending.rule, pending.onset) == ("change", 101)


def test_steps_that_are_not_finite_behind_a_change_are_put_down_to_it() -> None:
    guard = judged(learn, 100, guard_of())
    guard.change(100, patience=0)
    for number in range(1, 10):
        list(guard.judge(Seen(100 + number, float("nan"), 1.0, False, number, clock=100 + number, rows=1)))
    assert guard.pending is not None
    assert (guard.pending.rule, guard.pending.onset) == ("change", 101)


@pytest.mark.parametrize(
    ("curve", "unigram", "step"),
    [
        (lambda step: 6.2 if step == 1 else 12.0, None, 6),
        (lambda step: 6.2 if step < 250 else 12.0, 5.4, 255),  # no text is that hard for a model that knew nothing
        (lambda step: 5.38 + 0.8 * 0.9**step, 5.4, 210),
        (lambda step: 5.38 + 0.8 * 0.9**step, None, None),
        (lambda step: 5.38 + 0.8 * 0.995**step, 5.4, None),  # it took long to learn frequencies
        (lambda step: 2.0 if step < 250 else 3.5, 5.4, None),  # knew something before it began; other text is harder
        (learn, 5.4, None),
    ],
)
def test_a_model_that_learns_nothing_or_is_worse_than_at_first(
    curve: Curve, unigram: float | None, step: int | None
) -> None:
    pending = judged(curve, 400, guard_of(unigram)).pending
    assert (pending and pending.rule) == (None if step is None else "rate")
    if pending is not None and step is not None:
        assert abs(pending.step - step) <= 12


@pytest.mark.parametrize("norm", [0.2, 0.8])
def test_gradients_tell_whether_the_rate_is_too_high_where_not_even_frequencies_are_learned(norm: float) -> None:
    guard = judged(lambda _: 5.9, 400, guard_of(5.4), norm=lambda step: 0.2 if step < 10 else norm)
    assert (guard.pending is not None) == (norm == 0.8)


def test_a_lower_rate_is_given_time() -> None:
    """As a resume has it after the pause that asked for it."""
    for rate, step in ((3.0, 210), (0.3, 300)):
        guard = guard_of(5.4)
        for number in range(1, 401):
            here = 3.0 if number <= 200 else rate
            list(guard.judge(Seen(number, 5.39, 0.2, True, 0, clock=number, rows=1, targets=1000, rate=here)))
            if guard.pending is not None:
                break
        assert guard.pending is not None
        assert abs(guard.pending.step - step) <= 1


def test_other_text_ends_what_was_measured() -> None:
    guard = judged(learn, 100, guard_of())
    guard.change(100, patience=0)
    guard.meet_other_text()
    assert judged(lambda _: 9.0, 400, guard, first=101).pending is None


def test_its_state_goes_through_a_checkpoint() -> None:
    guard = judged(learn, 100, guard_of())
    guard.change(100, patience=0)
    judged(lambda _: 5.4, 120, guard, first=101)
    other = guard_of()
    other.load(json.loads(json.dumps(guard.state())))
    assert other.state() == guard.state()
    old = {key: value for key, value in guard.state().items() if key != "settings"}
    assert judged(lambda _: 5.4, 400, other, first=121).pending == judged(lambda _: 5.4, 400, guard, first=121).pending
    other.load(old)  # of a checkpoint from before these rules
    assert judged(lambda _: 5.4, 400, other, first=121).pending is None


# ---- in real runs


@pytest.mark.parametrize(
    ("mode", "told", "text"),
    [
        ("safe", ["optim.lr=1.5"], "optim.lr 0.003 -> 1.5 is undone"),
        ("auto", ["optim.kind=lion", "optim.lr=1.5"], 'optim.kind "adamw" -> "lion"'),
    ],
    ids=["rate", "optimizer"],
)
def test_a_change_that_does_harm_is_undone_and_the_run_is_the_one_that_never_had_it(
    tmp_path: Path,
    launch_run: Callable[..., Exit],
    branch: Callable[..., Any],
    events: Callable[..., Any],
    mode: str,
    told: list[str],
    text: str,
) -> None:
    folder, words = tmp_path / "told", (*LONGER, f"guard.mode={mode}")
    RunDir(folder).control.mkdir(parents=True)
    write_request(RunDir(folder), Request(action="set", settings=told, at_step=60))
    assert launch_run(folder, *words) == Exit.DONE
    (back,) = events(folder, "rollback")
    assert (back["rule"], back["effective_step"], back["windows"], back["left_out"]) == ("change", 60, [], 0)
    assert back["checkpoint"] == "step-00000060"
    assert text in back["text"]
    assert back["text"].endswith(" is undone")
    assert launch_run(tmp_path / "twin", *words) == Exit.DONE
    assert branch(folder) == branch(tmp_path / "twin")
    assert check_run(RunDir(folder)).ok, check_run(RunDir(folder)).findings
    recipe = resolve(str(RunDir(folder).recipe), (), environ={}).recipe
    assert (recipe.optim.kind, recipe.optim.lr) == ("adamw", 3e-3)


def test_a_kill_before_the_recipe_is_written_again_changes_no_bit(
    tmp_path: Path, launch_run: Callable[..., Exit], branch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has the rollback, recipe.toml still the optimizer that was undone."""
    note, folder = Ledger.note, tmp_path / "told"

    def interrupted(self: Ledger, kind: str, at: Any, **fields: Any) -> None:
        note(self, kind, at, **fields)
        if kind == "rollback":
            raise KeyboardInterrupt

    RunDir(folder).control.mkdir(parents=True)
    told = ["optim.kind=lion", "optim.lr=1.5"]
    write_request(RunDir(folder), Request(action="set", settings=told, at_step=60))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "note", interrupted)
        assert launch_run(folder, *LONGER) == Exit.INTERRUPTED
    assert 'kind = "lion"' in RunDir(folder).recipe.read_text()
    assert launch_run(folder, mode="resume") == Exit.DONE
    assert launch_run(tmp_path / "twin", *LONGER) == Exit.DONE
    assert branch(folder) == branch(tmp_path / "twin")
    assert check_run(RunDir(folder)).ok


def test_a_rate_too_high_from_the_start_pauses_and_auto_begins_again_with_a_tenth(
    tmp_path: Path, launch_run: Callable[..., Exit], branch: Callable[..., Any], events: Callable[..., Any]
) -> None:
    words = ("train.tokens=7680", "optim.schedule.warmup=0", "optim.clip=none", "checkpoint.every=100")
    with pytest.raises(
        DivergedError, match=r"learned nothing: the learning rate is too high.*--optim.lr 0.3`"
    ) as paused:
        launch_run(tmp_path / "safe", *words, "optim.lr=3.0")
    assert str(RunDir(tmp_path / "safe").recipe) in str(paused.value)
    assert launch_run(tmp_path / "auto", *words, "optim.lr=3.0", "guard.mode=auto") == Exit.DONE
    backs = events(tmp_path / "auto", "rollback")
    assert [(each["rule"], each["effective_step"], each["checkpoint"]) for each in backs] == [
        ("rate", 0, "step-00000000")
    ] * len(backs)
    rate = 3.0 * 0.1 ** len(backs)
    assert launch_run(tmp_path / "twin", *words, f"optim.lr={rate:g}", "guard.mode=auto") == Exit.DONE
    losses = [[(each["step"], each["loss"]) for each in branch(tmp_path / name)] for name in ("auto", "twin")]
    assert losses[0] == losses[1]
    assert check_run(RunDir(tmp_path / "auto")).ok
