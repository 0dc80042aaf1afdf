"""Runs that heal: what the guard does within the loop, and that nothing else changes by it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hornbook.run.loop.training_loop as loop
from hornbook.errors import DivergedError, Exit
from hornbook.files.journal import read_records, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.state import State
from hornbook.run.doctor.check_run import check_run
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Job, Start
from hornbook.run.job.start.init_from import init_from_fork
from hornbook.run.launch.launch import launch
from hornbook.run.ledger.ledger import Ledger
from hornbook.run.loop.async_checkpointer import AsyncCheckpointer
from hornbook.settings.resolve import resolve
from tests.run.guard.poison import Poison, poison
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]

RUN = ("train.tokens=5120", "guard.max_skips=2")
"""40 steps of 4 samples each, a checkpoint every 4 steps."""
BAD: Poison = (range(80, 96), float("nan"))
"""Steps 21 to 24. Three are refused, then the run goes back to step 18 and leaves out steps 19 to 26."""
WINDOW = (72, 104)


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    original = State.forward_backward
    yield
    State.forward_backward = original


def state_of(folder: Path, step: int = 40) -> dict[str, bytes]:
    """All bytes of a checkpoint that the next step depends on; of the guard's state too."""
    checkpoint = RunDir(folder).checkpoints / f"step-{step:08d}"
    names = ("model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json")
    return {name: (checkpoint / name).read_bytes() for name in names}


def without(window: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin without these samples."""
    original = loop.initialize_or_restore

    def begin(job: Job, state: Any, *rest: Any) -> None:
        original(job, state, *rest)
        state.loader.skip([window])

    monkeypatch.setattr(loop, "initialize_or_restore", begin)


@pytest.fixture(scope="module")
def clean(tiny_settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that never had the samples of `WINDOW`."""
    folder = tmp_path_factory.mktemp("clean") / "run"
    with pytest.MonkeyPatch.context() as patch:
        without(WINDOW, patch)
        launch(resolve(None, (*tiny_settings, *RUN), environ={}), RunDir(folder), Start())
    return folder


def test_after_going_back_the_run_is_the_one_that_never_had_the_data(
    tmp_path: Path, clean: Path, launch_run: Launch, branch: Branch, events: Events
) -> None:
    poison(BAD)
    assert launch_run(tmp_path / "run", *RUN) == Exit.DONE
    (back,) = events(tmp_path / "run", "rollback")
    assert (back["rule"], back["step"], back["onset"], back["effective_step"]) == ("D0", 23, 21, 18)
    assert (back["windows"], back["checkpoint"], back["left_out"]) == ([[72, 104]], "step-00000016", 8)
    assert branch(tmp_path / "run") == branch(clean)
    assert state_of(tmp_path / "run") == state_of(clean)
    assert check_run(RunDir(tmp_path / "run")).ok
    steps = [(each["attempt"], each["step"]) for each in read_records(RunDir(tmp_path / "run").metrics)]
    assert steps == [*((1, step) for step in range(1, 24)), *((2, step) for step in range(17, 41))]
    assert [each["step"] for each in events(tmp_path / "run", "skip")] == [21, 22, 23]
    left = sorted(path.name for path in RunDir(tmp_path / "run").checkpoints.glob("*step-*"))
    assert "abandoned-step-00000020" in left


@pytest.mark.parametrize("where", ["before the record", "after the record", "after the restore", "later"])
def test_a_kill_around_the_decision_changes_no_bit(
    tmp_path: Path, clean: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    poison(BAD)
    with monkeypatch.context() as patch:
        _interrupt(patch, where)
        assert launch_run(tmp_path / "run", *RUN) == Exit.INTERRUPTED
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE
    assert state_of(tmp_path / "run") == state_of(clean)
    assert len(events(tmp_path / "run", "rollback")) == 1
    assert check_run(RunDir(tmp_path / "run")).ok
    attempts = [each["attempt"] for each in read_records(RunDir(tmp_path / "run").metrics)]
    assert attempts == sorted(attempts)
    assert attempts[-1] == 3


def test_a_fork_takes_no_decision_of_its_parent(
    tmp_path: Path, launch_run: Launch, events: Events, branch: Branch
) -> None:
    """The parent paused over a finding, which its checkpoint of that step holds."""
    undo = poison(BAD)
    with pytest.raises(DivergedError, match="there is no checkpoint of step 18 or before"):
        launch_run(tmp_path / "run", *RUN, "checkpoint.every=23")
    undo()
    parent = RunDir(tmp_path / "run")
    saved = json.loads((parent.checkpoints / "step-00000023" / "trainer" / "state.json").read_text())
    assert saved["guard"]["pending"]["rule"] == "D0"
    recipe = resolve(str(parent.recipe), (), environ={}).recipe
    assert launch_run(tmp_path / "fork", *RUN, init_from=init_from_fork(parent, 23, recipe, recipe)) == Exit.DONE
    assert events(tmp_path / "fork", "rollback") == events(tmp_path / "fork", "pause") == []
    assert [each["step"] for each in branch(tmp_path / "fork")] == list(range(24, 41))


def _interrupt(patch: pytest.MonkeyPatch, where: str) -> None:
    note, restore, step = Ledger.note, AsyncCheckpointer.restore, loop.take_step
    restores: list[int] = []

    def noting(self: Ledger, kind: str, at: Any, **fields: Any) -> None:
        if kind == "rollback" and where == "before the record":
            raise KeyboardInterrupt
        note(self, kind, at, **fields)
        if kind == "rollback" and where == "after the record":
            raise KeyboardInterrupt

    def restoring(self: AsyncCheckpointer, state: Any) -> Any:
        found = restore(self, state)
        restores.append(state.step)
        if restores == [0, 16] and where == "after the restore":
            raise KeyboardInterrupt
        return found

    def stepping(job: Job, state: Any, *rest: Any) -> Any:
        if where == "later" and restores == [0, 16] and state.step == 19:
            raise KeyboardInterrupt
        return step(job, state, *rest)

    patch.setattr(Ledger, "note", noting)
    patch.setattr(AsyncCheckpointer, "restore", restoring)
    patch.setattr(loop, "take_step", stepping)


def test_two_ranks_agree_and_one_of_them_may_die(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch, events: Events
) -> None:
    words = ["train", *tiny_settings, *RUN, "parallel.data=2"]
    bad = {"phase": "data", "do": "poison", "first": 80, "end": 96}
    dead = {"rank": 1, "generation": 0, "phase": "optimizer", "step": 19, "do": "SIGKILL"}
    folders = [tmp_path / name for name in ("whole", "killed")]
    faults = [[bad], [bad, dead]]
    for folder, fault in zip(folders, faults, strict=True):
        started = launcher.start([*words, "--out", str(folder)], folder.with_suffix(".txt"), fault)
        assert started.wait() == Exit.DONE, started.text
        (back,) = events(folder, "rollback")
        assert (back["step"], back["effective_step"], back["windows"]) == (23, 18, [[72, 104]])
        verify_chain(RunDir(folder).events)
    assert branch(folders[0]) == branch(folders[1])
    assert state_of(folders[0]) == state_of(folders[1])


def test_the_ladder_to_its_end(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    """All data from step 21 on is bad: it goes back, lowers the learning rate, clips more, and pauses."""
    undo = poison((range(80, 10_000), float("nan")))
    words = (
        *RUN,
        "guard.mode=auto",
        'guard.swaps=["optim.momentum=0.5", "optim.clip=0.3"]',
        "optim.schedule.kind=constant",
    )
    with pytest.raises(DivergedError, match="it went back 3 times") as error:
        launch_run(tmp_path / "run", *words)
    assert error.value.exit_code == 5
    first, second, third = events(tmp_path / "run", "rollback")
    assert "intervention" not in first
    assert second["intervention"]["overlay"][0] == 0.7
    assert third["intervention"]["changes"][0]["key"] == "optim.clip.limit"
    (pause,) = events(tmp_path / "run", "pause")
    run = RunDir(tmp_path / "run")
    evidence = json.loads((run.incidents / f"guard-step-{pause['step']:08d}.json").read_text())
    assert evidence["finding"]["rule"] == "D0"
    rates = {each["step"]: each["lr"] for each in read_records(run.metrics) if each["attempt"] == 3}
    assert rates[second["effective_step"] + 1] == pytest.approx(0.007)
    assert "limit = 0.3" in run.recipe.read_text() or "clip = 0.3" in run.recipe.read_text()
    assert [each for each in check_run(run).findings if not each.ok] == []
    undo()
    assert launch_run(run.path, mode="resume") == Exit.DONE


def test_a_swap_that_a_person_made_before_is_passed_over(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    poison((range(80, 10_000), float("nan")))
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="set", settings=["optim.clip=0.3"], at_step=6))
    words = (*RUN, "guard.mode=auto", 'guard.swaps=["optim.clip=0.3", "optim.clip=0.2"]')
    with pytest.raises(DivergedError, match="it went back 3 times"):
        launch_run(run.path, *words, "optim.schedule.kind=constant")
    last = events(run.path, "rollback")[-1]
    assert last["intervention"]["swap"] == "optim.clip=0.2"
    assert last["intervention"]["changes"][0]["new"] == 0.2


def test_safe_stops_where_there_is_nothing_to_go_back_to(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    poison((range(4, 100), float("nan")))
    with pytest.raises(DivergedError, match="there is no checkpoint of step 0 or before"):
        launch_run(tmp_path / "run", *RUN)
    assert [each["kind"] for each in events(tmp_path / "run")][-2:] == ["pause", "fail"]


def test_observing_changes_nothing(tmp_path: Path, launch_run: Launch, branch: Branch, events: Events) -> None:
    poison(BAD)
    for mode in ("off", "observe"):
        with pytest.raises(DivergedError, match="3 steps in a row, up to step 23"):
            launch_run(tmp_path / mode, *RUN, f"guard.mode={mode}")
    assert branch(tmp_path / "off") == branch(tmp_path / "observe")
    (would,) = events(tmp_path / "observe", "observed")
    assert (would["would"], would["rule"], would["onset"]) == ("rollback", "D0", 21)


def test_a_decision_may_be_left_out(tmp_path: Path, tiny_settings: tuple[str, ...], events: Events) -> None:
    poison(BAD)
    start = Start(suppressed=frozenset({("rollback", 23)}))
    with pytest.raises(DivergedError, match="4 steps in a row, up to step 24"):
        launch(resolve(None, (*tiny_settings, *RUN), environ={}), RunDir(tmp_path / "run"), start)
    (left,) = events(tmp_path / "run", "suppressed")
    assert (left["decision"], left["rule"], left["step"]) == ("rollback", "D0", 23)


def test_a_gradient_far_out_is_refused_and_one_that_stands_out_is_clipped(
    tmp_path: Path, launch_run: Launch, events: Events
) -> None:
    """100 steps; then gradients are far too large in step 91, and too large in step 95."""
    poison((range(360, 364), 1e12), (range(376, 380), 1e3))
    words = ("train.tokens=12800", "checkpoint.every=90", "optim.clip=0", "guard.skip_norm_z=40")
    assert launch_run(tmp_path / "run", *words) == Exit.DONE
    steps = {each["step"]: each for each in read_records(RunDir(tmp_path / "run").metrics)}
    assert [step for step, each in steps.items() if each["skipped"]] == [91]
    assert "clipped" in steps[95]
    assert steps[95]["clipped"] < steps[95]["gradient_norm"]
    (skip,) = events(tmp_path / "run", "skip")
    assert (skip["rule"], skip["in_a_row"], skip["first_sample"]) == ("D1b", 1, 360)
    assert skip["z_norm"] > 40


@pytest.mark.parametrize("first", [360, 361])
def test_a_step_that_meets_a_stage_of_the_mixture_is_not_measured_by_those_before(
    tmp_path: Path, launch_run: Launch, first: int
) -> None:
    """The gradients of step 91, which would be clipped, are those of other data: a stage begins with it, or in it."""
    poison((range(360, 364), 1e3))
    stages = f"data.stages=[{{from_tokens={first * 32}, weights={{notes=1}}}}]"
    assert launch_run(tmp_path / "run", "train.tokens=12800", "optim.clip=0", stages) == Exit.DONE
    steps = {each["step"]: each for each in read_records(RunDir(tmp_path / "run").metrics)}
    assert [step for step, each in steps.items() if each["skipped"] or "clipped" in each] == []
    assert steps[91]["gradient_norm"] > 100 * steps[90]["gradient_norm"]


def test_fp16_without_a_scale_goes_back(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    """From step 21 on every gradient overflows: the scale falls to 1, and then nothing explains it."""
    poison((range(80, 160), float("inf")))
    assert launch_run(tmp_path / "run", *RUN, "train.precision=fp16") == Exit.DONE
    (back,) = events(tmp_path / "run", "rollback")
    assert (back["rule"], back["onset"], back["inputs"]) == ("D4", 21, {"scale": 1.0})
    assert back["step"] == 36
