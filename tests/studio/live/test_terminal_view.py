"""`hornbook watch --tty`: runs in a terminal."""

import json
import time
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.studio.terminal_view import HEAD, follow
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.studio.live.run_view import Runs, newest_steps
from tests.studio.conftest import MakeRun

EVENTS = [
    {"kind": "start", "step": 0},
    {"kind": "save", "step": 2, "checkpoint": "step-00000002", "seconds": 0.123456},
    {"kind": "stop", "step": 3, "text": "asked\x1b[2J to stop"},
]


def run_that_trains(make_run: MakeRun) -> RunDir:
    """A run whose heartbeat is of now."""
    run = make_run("a", [4.0, 3.5, 3.0], events=EVENTS)
    state = {"status": "running", "heartbeat": time.time(), "attempt": 1, "step": 3, "tokens": 300, "loss": 3.0}
    run.state.write_text(json.dumps(state | {"total_tokens": 1_000_300}))
    return run


def test_a_run_is_shown_once_where_there_is_no_terminal(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_that_trains(make_run)
    assert main(["watch", "--tty", str(run.path)]) == Exit.DONE
    head, row, _, *events = capsys.readouterr().out.splitlines()
    assert all(name in head for name in HEAD)
    for text in ("a ", "running", "s ago", " 3 ", "0%", "3.0000", "0.001", "5k", "3m20s", "stop at step 3", "█▅▁"):
        assert text in row
    assert [each.split("  ")[1] for each in events] == ["start at step 0", "save at step 2", "stop at step 3"]
    assert "seconds 0.1235" in events[1]
    assert "\x1b" not in events[2]


def test_runs_of_a_folder_and_as_json(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_that_trains(make_run)
    broken = make_run("b", [4.0])
    broken.state.write_text("{")
    broken.events.write_text("no ledger\n")
    broken.metrics.write_text('{"attempt": 1, "step": 1, "lo\n{"att')
    make_run("c", [])
    assert main(["watch", "--tty", str(tmp_path)]) == Exit.DONE
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["a", "b", "c"]
    assert "b: events.jsonl" in out
    assert main(["watch", "--tty", str(tmp_path), "--json"]) == Exit.DONE
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [(row["name"], row["tokens_per_second"]) for row in rows] == [("a", 5000.0), ("b", None), ("c", None)]
    assert main(["watch", "--tty", str(tmp_path / "none")]) == Exit.USAGE


def test_it_is_drawn_every_second_until_a_person_ends_it(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, looks = run_that_trains(make_run), list[float]()

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        with run.metrics.open("a") as file:
            file.write(json.dumps({"attempt": 1, "step": 3 + len(looks), "loss": 2.0}) + "\n")
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    rows = follow(Runs([tmp_path]))
    assert looks == [1.0] * 3
    assert rows[0]["spark"] == [4.0, 3.5, 3.0, 2.0, 2.0]
    assert newest_steps(run)[-1]["step"] == 6
