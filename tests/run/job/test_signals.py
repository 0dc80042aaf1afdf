"""Stopping: signals finish the step, save, and end with 75; and a killed process goes on bit for bit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.train.training import describe_result, ending
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.parallel.engine import Engine
from hornbook.run.job.job import Start
from hornbook.run.job.signals import STOPPING, StopSignals
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve
from tests.processes import wait_until
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]


def checkpoint_bytes(folder: Path, step: int) -> tuple[bytes, bytes]:
    checkpoint = RunDir(folder).checkpoints / f"step-{step:08d}"
    moments = checkpoint / "trainer" / "optimizer.safetensors"
    return (checkpoint / "model.safetensors").read_bytes(), moments.read_bytes()


def send_in_step(monkeypatch: pytest.MonkeyPatch, step: int, *signals: int) -> None:
    """Send signals to this process inside the forward pass of a step."""
    original = Engine.forward_backward

    def interrupted(self: Engine, batches: Any, total_weight: float, key: tuple[int, int]) -> Any:
        for number in signals if key[1] + 1 == step else ():
            os.kill(os.getpid(), number)
        return original(self, batches, total_weight, key)

    monkeypatch.setattr(Engine, "forward_backward", interrupted)


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    """SIGHUP as it is below a terminal, for these tests and what they start: under nohup it would be ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_finishes_the_step_saves_and_stops(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    send_in_step(monkeypatch, 6, number)
    assert launch_run(tmp_path / "run", "checkpoint.background=false") == Exit.RESUMABLE
    assert signal.getsignal(number) is before
    kinds = [(record["kind"], record["step"]) for record in events(tmp_path / "run")]
    assert kinds == [("start", 0), ("save", 4), ("stop_requested", 6), ("save", 6), ("stop", 6)]
    assert events(tmp_path / "run", "stop_requested")[0]["reason"] == name


@pytest.mark.parametrize("announces", [True, False])
def test_the_first_interrupt_is_answered_at_once(capfd: pytest.CaptureFixture[str], announces: bool) -> None:
    with StopSignals(announces=announces) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert capfd.readouterr().err == ""
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == "SIGINT"
        assert capfd.readouterr().err == (f"{STOPPING}\n" if announces else "")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert capfd.readouterr().err == ""


def test_a_second_interrupt_leaves_at_once(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    send_in_step(monkeypatch, 7, signal.SIGINT, signal.SIGINT)
    assert launch_run(tmp_path / "run", "checkpoint.background=false") == Exit.INTERRUPTED
    run = RunDir(tmp_path / "run")
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-00000004"]
    state = run.read_state()
    assert state is not None
    assert (state["status"], state["step"]) == ("stopped", 6)
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)


def test_a_second_sigterm_gives_the_save_up(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hornbook.run.job.signals.SECOND_SECONDS", 0.0)
    send_in_step(monkeypatch, 7, signal.SIGTERM, signal.SIGTERM)
    assert launch_run(tmp_path / "run", "checkpoint.background=false") == Exit.RESUMABLE
    run = RunDir(tmp_path / "run")
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-00000004"]
    assert (run.read_state() or {})["status"] == "stopped"
    (stop,) = events(run.path, "stop")
    assert (stop["step"], stop["reason"], stop["saved_step"]) == (6, "a second signal", 4)
    assert ending(describe_result(run)) == f"stopped at step 6, saved at step 4: {run.path}"
    monkeypatch.undo()
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)


def test_two_sigterm_at_once_are_one(tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that signals all processes of a job reaches one twice: by itself, and by the launcher."""
    send_in_step(monkeypatch, 7, signal.SIGTERM, signal.SIGTERM)
    assert launch_run(tmp_path / "run") == Exit.RESUMABLE
    assert (RunDir(tmp_path / "run").checkpoints / "step-00000007").is_dir()


def test_an_evaluation_gives_way_to_a_signal(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Engine.evaluate
    calls = []

    def interrupted(self: Engine, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch)

    monkeypatch.setattr(Engine, "evaluate", interrupted)
    assert launch_run(tmp_path / "run", "eval.every=3") == Exit.RESUMABLE
    assert len(calls) == 2
    assert [(record["kind"], record["step"]) for record in events(tmp_path / "run", "evaluation", "stop")] == [
        ("stop", 3)
    ]


# Processes of their own.

LONG = ("train.tokens=19200", "checkpoint.every=40")
"""150 steps."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """150 steps without any interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    resolved = resolve(None, (*tiny_settings, *LONG), environ={})
    launch(resolved, RunDir(folder), Start())
    return folder


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_stopped_or_killed_process_goes_on_bit_for_bit(
    tmp_path: Path,
    launcher: Launcher,
    tiny_settings: tuple[str, ...],
    whole_run: Path,
    branch: Branch,
    *,
    number: int,
    code: int,
) -> None:
    """The signal comes from outside, after ten steps or some more."""
    run = RunDir(tmp_path / "run")
    words = ["train", "--out", str(run.path), *tiny_settings, *LONG]
    started = launcher.start(words, tmp_path / "log")
    wait_until(lambda: run.metrics.exists() and run.metrics.read_bytes().count(b"\n") >= 10)
    os.kill(started.pid, number)
    assert started.wait() == code, started.text
    verb = ["resume", str(run.path)]
    if number == signal.SIGKILL:
        verb = ["train", "--out", str(run.path), "--resume", "auto", *tiny_settings, *LONG]
    again = launcher.start([*verb, "--json"], tmp_path / "again")
    assert again.wait() == 0, again.text
    answer = json.loads(again.text.splitlines()[-1])
    assert (answer["status"], answer["step"], answer["attempt"]) == ("finished", 150, 2)
    assert branch(run.path) == branch(whole_run)
    assert checkpoint_bytes(run.path, 150) == checkpoint_bytes(whole_run, 150)


def test_a_hangup_that_was_ignored_stays_ignored(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        send_in_step(monkeypatch, 6, signal.SIGHUP)
        assert launch_run(tmp_path / "run") == Exit.DONE
    finally:
        signal.signal(signal.SIGHUP, before)


EARLY = """
import os, signal, sys
from hornbook.cli import main
sys.argv = ["hornbook", sys.argv[1], "tiny"]
main.load_command = lambda name: os.kill(os.getpid(), getattr(signal, NAME))
sys.exit(main.main())
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP"])
@pytest.mark.parametrize("verb", ["train", "resume", "fork"])
def test_a_signal_before_the_run_begins_ends_with_the_same_code(name: str, verb: str) -> None:
    words = [sys.executable, "-c", EARLY.replace("NAME", repr(name)), verb]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, name in done.stderr) == (Exit.RESUMABLE, True), done
