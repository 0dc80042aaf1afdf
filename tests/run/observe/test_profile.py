"""`log.profile`: a Chrome trace of a window of steps, on each rank; wrong windows are refused before the run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.settings.resolve import resolve
from hornbook.settings.training import LogConfig

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]


@pytest.mark.parametrize(
    ("text", "done", "steps"),
    [
        ("100-104", 0, range(100, 105)),
        ("1-1", 0, range(1, 2)),
        ("5 steps", 0, range(11, 16)),
        ("5", 40, range(51, 56)),
        ("1 step", 0, range(11, 12)),
        ("", 7, range(0)),
    ],
)
def test_windows(text: str, done: int, steps: range) -> None:
    assert LogConfig(profile=text).profiled(done) == steps


@pytest.mark.parametrize("text", ["x", "5-4", "0 steps", "1-1000", "201 steps", "-5", "3 minutes"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match='write the steps to trace as "100-104" or "5 steps", 200 steps at most'):
        resolve(None, ["log.profile=" + text], environ={})


def backwards(path: Path) -> int:
    """Steps in a trace, by the passes of the fused optimizer."""
    events = json.loads(path.read_text())["traceEvents"]
    return sum(event.get("name", "") == "aten::_fused_adamw_" for event in events)


def test_a_window_is_traced_and_changes_no_bit(launch_run: Launch, branch: Branch, tmp_path: Path) -> None:
    assert launch_run(tmp_path / "plain") == Exit.DONE
    assert launch_run(tmp_path / "run", "log.profile=4-6") == Exit.DONE
    (trace,) = (tmp_path / "run" / "profile").iterdir()
    assert trace.name == "step-00000004-rank-0.json"
    per_step = backwards(trace) / 3
    assert per_step >= 1
    assert per_step.is_integer()
    assert branch(tmp_path / "run") == branch(tmp_path / "plain")
    assert "traced steps 4 to 6: profile/step-00000004-rank-0.json" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("window", "first", "last"), [("1-2", 1, 2), ("11-40", 11, 12), ("1 step", 11, 11)])
def test_a_window_at_either_end(window: str, first: int, last: int, launch_run: Launch, tmp_path: Path) -> None:
    assert launch_run(tmp_path / "run", f"log.profile={window}") == Exit.DONE
    assert f"traced steps {first} to {last}:" in (tmp_path / "run" / "log.txt").read_text()


def test_a_window_behind_the_end_traces_nothing(launch_run: Launch, tmp_path: Path) -> None:
    assert launch_run(tmp_path / "run", "log.profile=100-104") == Exit.DONE
    assert not (tmp_path / "run" / "profile").exists()


def test_a_trace_that_cannot_be_written_does_not_end_the_run(
    launch_run: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", full)
    assert launch_run(tmp_path / "run", "log.profile=4-5") == Exit.DONE
    assert "no trace was written" in (tmp_path / "run" / "log.txt").read_text()
