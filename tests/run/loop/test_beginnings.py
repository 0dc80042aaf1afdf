"""Runs that begin badly, and watchers that go away: nothing starts over by itself, nothing ends the run."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, IntegrityError, StorageError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.manifest import ValidationLoss
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.start.init_from import init_from_fork
from hornbook.run.observe.console import Console, Header
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]


class Killed(BaseException):
    """Stands for a kill: no handler of ours sees it as an error."""


@pytest.fixture
def parent(tmp_path: Path, launch_run: Launch) -> RunDir:
    """A finished run with checkpoints at steps 4, 8 and 12."""
    launch_run(tmp_path / "parent")
    return RunDir(tmp_path / "parent")


@pytest.fixture
def fork_killed_at(
    tmp_path: Path, parent: RunDir, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """fork_killed_at("a.dotted.method") forks `parent` at step 4 into `child`, which dies when the method is called."""

    def die(*_: object) -> None:
        raise Killed

    def fork(method: str) -> None:
        recipe = resolve(str(parent.recipe), environ={}).recipe
        init_from = init_from_fork(parent, 4, recipe, recipe)
        with monkeypatch.context() as patch:
            patch.setattr(method, die)
            with pytest.raises(Killed):
                launch_run(tmp_path / "child", init_from=init_from)

    return fork


def test_a_fork_killed_before_it_has_its_weights_resumes_from_its_origin(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch, fork_killed_at: Callable[[str], None]
) -> None:
    fork_killed_at("hornbook.run.job.start.init_from.InitFrom.load")
    assert launch_run(tmp_path / "child", mode="resume") == Exit.DONE
    assert branch(tmp_path / "child") == branch(parent.path)[4:]


def test_what_a_dead_start_left_does_not_reach_the_next(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch, fork_killed_at: Callable[[str], None]
) -> None:
    fork_killed_at("hornbook.run.job.job.Job.write_recipe")
    assert launch_run(tmp_path / "child") == Exit.DONE
    assert branch(tmp_path / "child") == branch(parent.path)


def test_a_run_whose_checkpoints_are_gone_does_not_start_over(parent: RunDir, launch_run: Launch) -> None:
    shutil.rmtree(parent.checkpoints)
    with pytest.raises(IntegrityError, match="holds no checkpoint"):
        launch_run(parent.path, mode="resume")


def test_a_heartbeat_that_cannot_be_written_stops_nothing(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(RunDir, "write_state", full)
    assert launch_run(tmp_path / "run") == Exit.DONE
    assert (tmp_path / "run" / "checkpoints" / "step-00000012").is_dir()


def test_a_request_for_later_is_answered_at_the_end(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=500))
    (run.control / "a-folder").mkdir()
    assert launch_run(run.path) == Exit.DONE
    (answer,) = events(run.path, "request")
    assert (answer["accepted"], answer["reason"]) == (False, "the run had finished")
    assert [entry.name for entry in run.control.iterdir()] == ["a-folder"]


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe", text[:0])


@pytest.mark.parametrize("live", [False, True])
def test_a_console_without_a_reader_falls_silent(live: bool) -> None:
    header = Header("demo", 1, "bf16", "cpu", 4096, 250, 1_024_000, "cosine")
    with Console(header, every=1, stream=Gone(), live=live) as console:
        console.note("nobody reads this")
        console.note("nor this")


def test_a_score_that_is_no_number_never_becomes_best(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hornbook.run.observe.evaluation.ValidationLoss", lambda _, rows: ValidationLoss(float("nan"), rows)
    )
    assert launch_run(tmp_path / "run") == Exit.DONE
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "finished"


def test_a_recipe_with_a_secret_is_refused(tmp_path: Path, launch_run: Callable[..., Any]) -> None:
    """Nothing is written: recipe.toml and the ledger would keep it."""
    with pytest.raises(UsageError, match=r"^eval\.prompt holds what looks like a password or token"):
        launch_run(tmp_path / "run", "eval.prompt=my key is ghp_" + "aB3dE6gH9j" * 4)
    assert not (tmp_path / "run").exists()
    assert launch_run(tmp_path / "run") == Exit.DONE
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"^eval\.prompt holds what looks like a password or token"):
        launch_run(tmp_path / "run", "eval.prompt=my key is ghp_" + "aB3dE6gH9j" * 4, mode="resume")
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before
