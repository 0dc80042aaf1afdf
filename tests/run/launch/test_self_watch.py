"""A rank that watches itself: what it says of a silence, and when it ends."""

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job import heartbeat as heartbeats
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.launch import self_watch
from hornbook.run.launch.self_watch import watching_itself
from hornbook.run.ledger.ledger import At, Ledger
from tests.processes import wait_until

Events = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is written to stderr; silence counts from 0.2 s on."""
    monkeypatch.setattr(heartbeats, "MIN_SILENCE", 0.2)
    monkeypatch.setattr(self_watch, "PERIOD", 0.02)
    monkeypatch.setattr(self_watch, "sys", SimpleNamespace(stderr=(text := io.StringIO())))
    return text


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which the process would have ended."""
    monkeypatch.setattr(self_watch.os, "_exit", (found := list[int]()).append)
    return found


@pytest.fixture
def heartbeat() -> Heartbeat:
    """Of a rank that knows how long its phases take."""
    found = Heartbeat()
    for phase in ("data", "clip") * 2:
        found.enter(phase, At(step=3, tokens=96))
    return found


def test_a_silence_that_ends_leaves_stacks_alone(
    tmp_path: Path, heartbeat: Heartbeat, said: io.StringIO, codes: list[int]
) -> None:
    run = RunDir(tmp_path / "run").create()
    stacks = run.incidents / "1" / "rank-0.txt"
    with Ledger(run) as ledger:
        ledger.attempt = 1
        with watching_itself(heartbeat, run, ledger, 0.0):
            wait_until(lambda: "silent" in said.getvalue())
            heartbeat.enter("data", At(step=4, tokens=128))
            wait_until(lambda: "goes on" in said.getvalue())
    assert not codes
    silent, back = said.getvalue().splitlines()
    assert silent == f"rank 0 is silent: its stacks are in {stacks} (step 3, clip)"
    assert back == "rank 0 goes on (step 4, data)"
    assert "test_a_silence_that_ends_leaves_stacks_alone" in stacks.read_text()


@pytest.mark.parametrize("limit", [0.0, 0.3])
def test_a_long_silence_ends_the_process(
    tmp_path: Path, heartbeat: Heartbeat, said: io.StringIO, codes: list[int], events: Events, limit: float
) -> None:
    run = RunDir(tmp_path / "run").create()
    with Ledger(run) as ledger, watching_itself(heartbeat, run, ledger, limit):
        ledger.attempt = 1
        wait_until(lambda: bool(codes))
    assert codes[0] == Exit.RESUMABLE
    first = next(line for line in said.getvalue().splitlines() if line.startswith("error"))
    seconds = float(first.removeprefix("error rank 0 was silent for ").split()[0])
    assert seconds >= (limit or 0.2 * self_watch.PATIENCE)
    (failed, *_) = events(run.path, "fail")
    assert (failed["error"], failed["step"]) == ("RankLostError", 3)
