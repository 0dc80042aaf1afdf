"""Requests of people, and the switch that holds a run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.launch.signals import StopSignals
from hornbook.run.ledger import At, Ledger
from hornbook.run.requests import Inbox, Orders, Request, refuse_if_held, stop_file, write_request

Launch = Callable[..., Exit]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run").create()


@pytest.fixture
def inbox(run: RunDir) -> Iterator[Inbox]:
    with StopSignals() as signals, Ledger(run) as ledger:
        yield Inbox(run, ledger, signals)


def records(run: RunDir) -> list[dict[str, Any]]:
    return [record for record, _ in read_records(run.events)]


def test_nothing_is_asked(run: RunDir, inbox: Inbox) -> None:
    assert inbox.poll(At(3, 30)) == Orders()
    assert records(run) == []


def test_a_request_is_acknowledged_with_its_step_then_removed(run: RunDir, inbox: Inbox) -> None:
    path = write_request(run, Request(action="save", reason="before lunch"))
    assert inbox.poll(At(3, 30)) == Orders(save=True)
    assert not path.exists()
    (record,) = records(run)
    assert (record["kind"], record["step"], record["tokens"]) == ("request", 3, 30)
    assert (record["action"], record["reason"], record["accepted"]) == ("save", "before lunch", True)
    assert inbox.poll(At(4, 40)) == Orders()


def test_a_request_waits_for_its_step(run: RunDir, inbox: Inbox) -> None:
    write_request(run, Request(action="stop", at_step=5))
    assert inbox.poll(At(4, 40)) == Orders()
    assert inbox.poll(At(5, 50)) == Orders(stop="request")


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"action": "dance"}', b"[1]", b"\xff\xfe", b'{"action": "save", "x": 1}']
)
def test_what_is_no_request_is_refused_once(run: RunDir, inbox: Inbox, content: bytes) -> None:
    (run.control / "odd.json").write_bytes(content)
    assert inbox.poll(At()) == Orders()
    assert inbox.poll(At()) == Orders()
    (record,) = records(run)
    assert (record["accepted"], record["file"]) == (False, "odd.json")


def test_a_half_written_request_is_left_alone(run: RunDir, inbox: Inbox) -> None:
    (run.control / ".tmp-1.json-77").write_text('{"act')
    assert inbox.poll(At()) == Orders()
    assert records(run) == []


def test_the_stop_file_stops_and_holds(run: RunDir, inbox: Inbox) -> None:
    refuse_if_held(run)
    stop_file(run).touch()
    assert inbox.poll(At(2, 20)) == Orders(stop="STOP file")
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
