"""What a disk that is full or failing does to a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, StorageError
from hornbook.run.checkpoint import Checkpoints
from hornbook.rundir import RunDir

Launch = Callable[..., Exit]
Events = Callable[..., list[dict[str, Any]]]


def fail_at(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    original = Checkpoints.save

    def save(self: Checkpoints, state: Any, final: bool = False, score: float | None = None) -> Path:
        if state.step in steps:
            raise StorageError("no space left")
        return original(self, state, final, score)

    monkeypatch.setattr(Checkpoints, "save", save)


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
    from hornbook.journal import Appender

    order: list[str] = []
    sync, save = Appender.sync, Checkpoints.save

    def noted_sync(self: Appender) -> None:
        if self.path.name == "metrics.jsonl":
            order.append("sync")
        sync(self)

    def noted_save(self: Checkpoints, state: Any, final: bool = False, score: float | None = None) -> Path:
        order.append("save")
        return save(self, state, final, score)

    monkeypatch.setattr(Appender, "sync", noted_sync)
    monkeypatch.setattr(Checkpoints, "save", noted_save)
    launch_run(tmp_path / "run", "log.sync_seconds=1000")
    assert order[:6] == ["sync", "save"] * 3
