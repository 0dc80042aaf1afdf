"""Requests of people, and the switch that holds a run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Control, ControlRequests, Request, refuse_if_held, stop_file, write_request
from hornbook.run.job.signals import StopSignals
from hornbook.run.ledger.ledger import At, Ledger, RunWriter

Launch = Callable[..., Exit]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run").create()


@pytest.fixture
def control(run: RunDir) -> Iterator[Control]:
    with StopSignals() as signals, Ledger(run) as ledger:
        yield Control(RunWriter(run, ledger), signals)


def records(run: RunDir) -> list[dict[str, Any]]:
    return list(read_records(run.events))


def test_nothing_is_asked(run: RunDir, control: Control) -> None:
    assert control.poll(At(3, 30)) == ControlRequests()
    assert records(run) == []


def test_a_request_is_acknowledged_with_its_step_then_removed(run: RunDir, control: Control) -> None:
    path = write_request(run, Request(action="save", reason="before lunch"))
    assert control.poll(At(3, 30)) == ControlRequests(save=True)
    assert not path.exists()
    (record,) = records(run)
    assert (record["kind"], record["step"], record["tokens"]) == ("request", 3, 30)
    assert (record["action"], record["reason"], record["accepted"]) == ("save", "before lunch", True)
    assert control.poll(At(4, 40)) == ControlRequests()


def test_a_request_waits_for_its_step(run: RunDir, control: Control) -> None:
    write_request(run, Request(action="stop", at_step=5))
    assert control.poll(At(4, 40)) == ControlRequests()
    assert control.poll(At(5, 50)) == ControlRequests(stop="request")


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"action": "dance"}', b"[1]", b"\xff\xfe", b'{"action": "save", "x": 1}']
)
def test_what_is_no_request_is_refused_once(run: RunDir, control: Control, content: bytes) -> None:
    (run.control / "odd.json").write_bytes(content)
    assert control.poll(At()) == ControlRequests()
    assert control.poll(At()) == ControlRequests()
    (record,) = records(run)
    assert (record["accepted"], record["file"]) == (False, "odd.json")


def test_a_half_written_request_is_left_alone(run: RunDir, control: Control) -> None:
    (run.control / ".tmp-1.json-77").write_text('{"act')
    assert control.poll(At()) == ControlRequests()
    assert records(run) == []


def test_the_stop_file_stops_and_holds(run: RunDir, control: Control) -> None:
    refuse_if_held(run)
    stop_file(run).touch()
    assert control.poll(At(2, 20)) == ControlRequests(stop="STOP file")
    assert stop_file(run).exists()
    with pytest.raises(UsageError, match="remove the file to go on"):
        refuse_if_held(run)


def test_a_running_run_saves_when_asked(tmp_path: Path, launch_run: Launch) -> None:
    run = RunDir(tmp_path / "asked").create()
    write_request(run, Request(action="save", at_step=3))
    write_request(run, Request(action="save", at_step=4))
    assert launch_run(run.path) == Exit.DONE
    names = sorted(path.name for path in run.checkpoints.glob("step-*"))
    assert names == [f"step-{step:08d}" for step in (3, 4, 8, 12)]
    saves = [record["step"] for record in records(run) if record["kind"] == "save"]
    assert saves == [3, 4, 8, 12]  # step 4 was saved already when it was asked for
