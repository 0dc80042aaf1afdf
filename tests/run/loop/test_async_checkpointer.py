"""What a disk that is full or failing does to a run."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, StorageError
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.run.checkpoints.manifest import MANIFEST, verify_folder
from hornbook.run.loop import training_loop as train_module
from hornbook.run.loop.async_checkpointer import (
    MIN_DEADLINE,
    NICE,
    SLOW_DISK,
    WAIT_SECONDS,
    deadline,
    in_background,
)
from tests.processes import wait_until

Launch = Callable[..., Exit]
Events = Callable[..., list[dict[str, Any]]]


def fail_at(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    original = CheckpointStore.save

    def save(
        self: CheckpointStore, state: Any, final: bool = False, score: float | None = None, ledger: Any = None
    ) -> Path:
        if state.step in steps:
            raise StorageError("no space left")
        return original(self, state, final, score, ledger)

    monkeypatch.setattr(CheckpointStore, "save", save)


def test_one_failed_save_is_noted_and_the_run_goes_on(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, {4})
    assert launch_run(tmp_path / "run") == Exit.DONE
    (warning,) = events(tmp_path / "run", "warning")
    assert (warning["step"], warning["text"]) == (4, "the save failed: no space left")
    assert [record["step"] for record in events(tmp_path / "run", "save")] == [8, 12]


@pytest.mark.parametrize(("steps", "last"), [({4, 8}, 8), ({12}, 12)])
def test_two_in_a_row_or_the_last_end_the_run(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch, steps: set[int], last: int
) -> None:
    fail_at(monkeypatch, steps)
    with pytest.raises(StorageError, match="no space left"):
        launch_run(tmp_path / "run")
    state = RunDir(tmp_path / "run").read_state()
    assert state is not None
    assert (state["status"], state["step"]) == ("failed", last)
    monkeypatch.undo()
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE


def test_metrics_are_on_disk_before_a_checkpoint_is(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a power cut a checkpoint may not be newer than the record of its steps."""
    from hornbook.files.journal import Appender

    order: list[str] = []
    sync, save = Appender.sync, CheckpointStore.save

    def noted_sync(self: Appender) -> None:
        if self.path.name == "metrics.jsonl":
            order.append("sync")
        sync(self)

    def noted_save(self: CheckpointStore, state: Any, *rest: Any, **named: Any) -> Path:
        order.append("save")
        return save(self, state, *rest, **named)

    monkeypatch.setattr(Appender, "sync", noted_sync)
    monkeypatch.setattr(CheckpointStore, "save", noted_save)
    launch_run(tmp_path / "run", "log.sync_seconds=1000")
    assert order[:6] == ["sync", "save"] * 3


# In the background.


def slow_save(monkeypatch: pytest.MonkeyPatch, step: int, until: threading.Event, order: list[str]) -> None:
    """The save of a step takes until the event; `order` hears of every begin and end."""
    original = CheckpointStore.save

    def save(
        self: CheckpointStore, state: Any, final: bool = False, score: float | None = None, ledger: Any = None
    ) -> Path:
        order.append(f"begin {state.step}")
        if state.step == step:
            assert until.wait(120)
        folder = original(self, state, final, score, ledger)
        order.append(f"end {state.step}")
        return folder

    monkeypatch.setattr(CheckpointStore, "save", save)


def watch_steps(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` with the number of every step that begins."""
    original = train_module.take_step

    def take_step(job: Any, state: Any, *rest: Any) -> Any:
        act(state.step + 1)
        return original(job, state, *rest)

    monkeypatch.setattr(train_module, "take_step", take_step)


def test_a_scheduled_save_is_written_while_steps_go_on(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    until = threading.Event()

    def begins(step: int) -> None:
        if step == 7:
            wait_until(lambda: "begin 4" in order)
        order.append(f"step {step}")
        if step == 7:
            until.set()

    slow_save(monkeypatch, 4, until, order)
    watch_steps(monkeypatch, begins)
    assert launch_run(tmp_path / "run") == Exit.DONE
    assert order.index("begin 4") < order.index("step 7") < order.index("end 4") < order.index("begin 8")
    assert [record["step"] for record in events(tmp_path / "run", "save")] == [4, 8, 12]
    monkeypatch.undo()
    assert launch_run(tmp_path / "plain", "checkpoint.background=false") == Exit.DONE
    for step in (4, 8, 12):
        assert checkpoint_bytes(tmp_path / "run", step) == checkpoint_bytes(tmp_path / "plain", step)


def checkpoint_bytes(run: Path, step: int) -> dict[str, bytes]:
    """All files but the manifest, which names the run."""
    folder = RunDir(run).checkpoints / f"step-{step:08d}"
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_next_save_waits_for_the_one_in_flight(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    until = threading.Event()
    slow_save(monkeypatch, 4, until, order)

    waits = 0
    wait = futures.wait

    def counted(*words: Any) -> Any:
        nonlocal waits
        waits += 1
        if waits == 4:
            until.set()
        return wait(*words)

    monkeypatch.setattr(futures, "wait", counted)
    watch_steps(monkeypatch, lambda step: order.append(f"step {step}"))
    assert launch_run(tmp_path / "run") == Exit.DONE
    assert order.index("step 8") < order.index("end 4") < order.index("step 9")
    assert order.index("end 4") < order.index("begin 8") < order.index("end 8")
    first, second, _ = events(tmp_path / "run", "save")
    assert min(first["held_seconds"], first["seconds"]) >= 3 * WAIT_SECONDS, "the copy and three waits in vain"
    assert second["held_seconds"] >= 0


@pytest.mark.parametrize("background", ["true", "false"])
def test_a_disk_that_never_answers_ends_the_run(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch, background: str
) -> None:
    monkeypatch.setattr("hornbook.run.loop.async_checkpointer.MIN_DEADLINE", 1.0)
    until = threading.Event()
    slow_save(monkeypatch, 8, until, [])
    with pytest.raises(StorageError, match=r"the save of step 8 was given up after \d+ s: the disk does not answer"):
        launch_run(tmp_path / "run", f"checkpoint.background={background}")
    assert [record["step"] for record in events(tmp_path / "run", "save")] == [4]
    assert events(tmp_path / "run", "warning") == [], "no second try beside a thread that may write for ever"
    until.set()


def test_how_long_a_save_may_take() -> None:
    assert deadline(0.0) == MIN_DEADLINE
    assert deadline(84e9 / SLOW_DISK) == pytest.approx(5 * 84e9 / 50e6)  # seven billion parameters with their moments


def test_after_a_failure_the_loop_waits_for_its_save(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    watch_steps(monkeypatch, lambda step: order.append(f"step {step}"))
    slow_save(monkeypatch, 0, threading.Event(), order)
    working = CheckpointStore.save

    def failing(self: CheckpointStore, state: Any, *rest: Any, **named: Any) -> Path:
        if state.step == 4:
            raise StorageError("no space left")
        if state.step == 8:
            time.sleep(0.3)  # in the background a step would begin before it is done
        return working(self, state, *rest, **named)

    monkeypatch.setattr(CheckpointStore, "save", failing)
    assert launch_run(tmp_path / "run") == Exit.DONE
    assert order.index("end 8") < order.index("step 9")


def test_an_error_in_the_loop_lets_the_save_in_flight_be_finished(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = threading.Event()
    slow_save(monkeypatch, 4, until, [])

    def fail(step: int) -> None:
        if step == 6:
            threading.Timer(0.3, until.set).start()  # when the loop has gone
            raise RuntimeError("as the test wishes")

    watch_steps(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="as the test wishes"):
        launch_run(tmp_path / "run")
    checkpoints = RunDir(tmp_path / "run").checkpoints
    assert verify_folder(checkpoints / "step-00000004").step == 4
    assert not list(checkpoints.glob(".tmp-*"))
    monkeypatch.undo()
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE


def test_a_thread_that_gives_way_has_a_lower_priority_of_its_own() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = priority()
    assert in_background(priority, gives_way=True).result() == min(before + NICE, 19)
    assert in_background(priority).result() == before == priority()


def test_a_call_in_the_background_hands_over_its_error() -> None:
    def fail() -> None:
        raise StorageError("no space left")

    with pytest.raises(StorageError, match="no space left"):
        in_background(fail).result(120)


def test_the_scale_of_fp16_goes_on(tmp_path: Path, launch_run: Launch) -> None:
    run = tmp_path / "run"
    assert launch_run(run, "train.precision=fp16") == Exit.DONE
    expected = checkpoint_bytes(run, 12)
    assert json.loads(expected["trainer/state.json"])["scale"]["good_steps"] == 12
    for step in (8, 12):
        shutil.rmtree(RunDir(run).checkpoints / f"step-{step:08d}")
    assert launch_run(run, mode="resume") == Exit.DONE
    assert checkpoint_bytes(run, 12) == expected
