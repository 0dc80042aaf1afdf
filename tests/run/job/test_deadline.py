"""A run that has to be over at a time stops early enough to save, and goes on with the same bits."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.parallel.engine import Engine
from hornbook.run.job import deadline
from hornbook.run.job.control import Control, ControlRequests, stop_file
from hornbook.run.job.deadline import FLOOR_SECONDS, SAVES, SLURM_END, Deadline, read_deadline
from hornbook.run.job.job import Start
from hornbook.run.job.signals import StopSignals
from hornbook.run.launch.launch import launch
from hornbook.run.ledger.ledger import At, Ledger, RunWriter
from hornbook.settings.resolve import resolve
from tests.run.conftest import last_tensors

NOW = 1_800_000_000.0
HOUR = 3600.0


class Clocks:
    """The time of day and a clock that nobody sets; both go on only when told to."""

    def __init__(self) -> None:
        self.now, self.seconds = NOW, 50.0

    def wait(self, seconds: float) -> None:
        self.now, self.seconds = self.now + seconds, self.seconds + seconds

    def deadline(self, until: float | None) -> Deadline:
        return Deadline(until, lambda: self.now, lambda: self.seconds)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


# ---- What a command says


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 2 * HOUR), ("1h30m", 1.5 * HOUR), ("3d", 72 * HOUR), ("1d2h3m4s", 93784)],
)
def test_a_span_counts_from_now(text: str, seconds: float) -> None:
    assert read_deadline(text, {}, NOW) == NOW + seconds


def test_a_time_of_the_clock_is_local_unless_it_says_otherwise() -> None:
    local = datetime(2099, 11, 27, 6).timestamp()
    assert read_deadline("2099-11-27T06:00", {}, NOW) == local
    assert read_deadline("2099-11-27 06:00:00", {}, NOW) == local
    assert read_deadline("2099-11-27T06:00+02:00", {}, NOW) == datetime(2099, 11, 27, 4, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["", "soon", "2", "2 h", "-2h", "2h ", "h", "30m2h", "2026-13-01", "06:00", "1e9s"])
def test_what_is_no_time_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no time: .*2h.*2026-11-27T06:00"):
        read_deadline(text, {}, NOW)


@pytest.mark.parametrize("text", ["0s", "2026-11-27T06:00"])
def test_what_is_past_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--until {text} is past: .*2h.*2026-11-27T06:00"):
        read_deadline(text, {}, NOW)


def test_the_end_of_a_slurm_job_is_the_default() -> None:
    end = {SLURM_END: str(int(NOW + 60))}
    assert read_deadline(None, end, NOW) == NOW + 60
    assert read_deadline("1h", end, NOW) == NOW + HOUR
    assert read_deadline("1h", {SLURM_END: "tomorrow"}, NOW) == NOW + HOUR
    for nothing in ({}, {SLURM_END: ""}, {SLURM_END: "0"}):
        assert read_deadline(None, nothing, NOW) is None


@pytest.mark.parametrize(("value", "problem"), [("tomorrow", "is no time"), ("-1", "is no time"), ("17", "is past")])
def test_a_bad_end_of_a_slurm_job_is_refused(value: str, problem: str) -> None:
    with pytest.raises(UsageError, match=rf"{SLURM_END}={value} {problem}: unset {SLURM_END}, or give --until: .*2h"):
        read_deadline(None, {SLURM_END: value}, NOW)


# ---- When a run stops


def test_without_a_deadline_nothing_is_due(clocks: Clocks) -> None:
    never = clocks.deadline(None)
    clocks.wait(1e12)
    assert not never.is_due()
    assert not never.is_near()
    assert never.clock_time() == ""


def test_a_save_that_was_never_measured_takes_some_seconds(clocks: Clocks) -> None:
    soon = clocks.deadline(NOW + HOUR)
    clocks.wait(HOUR - SAVES * FLOOR_SECONDS - 0.01)
    assert not soon.is_due()
    clocks.wait(0.01)
    assert soon.is_due()


def test_a_large_checkpoint_is_expected_to_take_longer_until_one_is_measured(clocks: Clocks) -> None:
    soon = clocks.deadline(NOW + HOUR)
    soon.expect_save(200.0)
    clocks.wait(HOUR - 299.0)
    soon.begin_save()
    soon.end_save(10.0)
    assert not soon.is_due()
    clocks.wait(299.0 - SAVES * 10.0)
    assert soon.is_due()


def test_the_longest_step_has_to_fit_too(clocks: Clocks) -> None:
    soon = clocks.deadline(NOW + HOUR)
    for seconds in (600.0, 10.0, 100.0, 10.0):  # the first one compiles, the third one evaluates
        soon.begin_step()
        clocks.wait(seconds)
    soon.begin_step()
    soon.end_save(20.0)
    assert (soon.longest_step, soon.slowest_save) == (100.0, 20.0)
    clocks.wait(HOUR - 720 - 100 - 20 * SAVES - 0.01)
    assert not soon.is_due()
    clocks.wait(0.01)
    assert not soon.is_near()
    assert soon.is_due()
    assert soon.is_near(), "what is due stays so, else an evaluation might be dropped without a stop"


def test_the_first_step_counts_until_there_is_another(clocks: Clocks) -> None:
    soon = clocks.deadline(NOW + HOUR)
    soon.begin_step()
    clocks.wait(600.0)
    soon.begin_step()
    assert soon.longest_step == 600.0


def test_a_long_step_is_forgotten(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "RECENT", 5)
    soon = clocks.deadline(NOW + HOUR)
    for seconds in (1.0, 60.0, *[2.0] * 5):
        soon.begin_step()
        clocks.wait(seconds)
    soon.begin_step()
    assert soon.longest_step == 2.0


def test_a_save_in_flight_ends_before_the_last_one_begins(clocks: Clocks) -> None:
    soon = clocks.deadline(NOW + HOUR)
    soon.end_save(100.0)
    soon.begin_save()
    clocks.wait(HOUR - 100 * SAVES)
    assert soon.is_due()
    early = clocks.deadline(clocks.now + 100 + 100 * SAVES)
    early.end_save(100.0)
    early.begin_save()
    assert early.is_due()


def test_a_clock_that_is_set_back_does_not_take_a_stop_back(clocks: Clocks) -> None:
    soon = clocks.deadline(NOW + HOUR)
    clocks.now += HOUR
    assert soon.is_near()
    clocks.now -= 10 * HOUR
    assert soon.is_due()


def test_rank_0_alone_asks_for_the_stop_and_it_goes_for_all(tmp_path: Path, clocks: Clocks) -> None:
    run, late = RunDir(tmp_path / "run").create(), clocks.deadline(NOW + 1)
    with StopSignals() as signals, Ledger(run) as ledger:
        first = RunWriter(run, ledger)
        other = Control(first.on_rank(1), signals, deadline=late)
        assert other.poll(At(3, 30)) == ControlRequests()
        assert not other.interrupted
        asking = Control(first, signals, deadline=late)
        assert asking.interrupted
        sent = list[list[int]]()

        def keep(numbers: Any) -> list[int]:
            sent.append(list(numbers))
            return list(numbers)

        assert asking.poll(At(3, 30), keep) == ControlRequests(stop="deadline")
        assert other.poll(At(3, 30), lambda _: sent[0]) == ControlRequests(stop="deadline")
        stop_file(run).touch()
        assert asking.poll(At(4, 40)) == ControlRequests(stop="STOP file")
    assert late.describe().startswith(f"the deadline is {late.clock_time()}; a step takes up to ")


# ---- Whole runs


def test_a_run_stops_before_its_deadline_and_goes_on_with_the_same_bits(
    tmp_path: Path,
    tiny_settings: tuple[str, ...],
    launch_run: Callable[..., Exit],
    tiny_run: Path,
    branch: Callable[..., Any],
    events: Callable[..., Any],
    clocks: Clocks,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A step takes 100 s by the clocks of the deadline, and a save hardly any time: eight steps fit into 850 s."""
    original = Engine.forward_backward

    def slow(*arguments: Any, **more: Any) -> Any:
        clocks.wait(100.0)
        return original(*arguments, **more)

    module = SimpleNamespace(time=lambda: clocks.now, monotonic=lambda: clocks.seconds)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "forward_backward", slow)
        patch.setattr(deadline, "time", module)
        run, resolved = RunDir(tmp_path / "run"), resolve(None, tiny_settings, environ={})
        assert launch(resolved, run, Start(until=NOW + 850)) == Exit.RESUMABLE
    assert clocks.now == NOW + 800
    asked, stop = events(run.path, "stop_requested", "stop")
    assert [(each["step"], each["reason"]) for each in (asked, stop)] == [(8, "deadline")] * 2
    assert (run.read_state() or {})["status"] == "stopped"
    said = capsys.readouterr().err
    assert "the run saves and stops before 20" in said
    assert "stopped at step 8 (the deadline is 20" in said
    assert f"`hornbook resume {run.path}` goes on" in said
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)
    assert last_tensors(run.path) == last_tensors(tiny_run)


def test_an_evaluation_gives_way_to_a_deadline(
    tmp_path: Path, tiny_settings: tuple[str, ...], events: Callable[..., Any], clocks: Clocks, monkeypatch: Any
) -> None:
    original, calls = Engine.evaluate, []

    def slow(self: Engine, batch: Any) -> Any:
        calls.append(batch)
        clocks.wait(HOUR)
        return original(self, batch)

    monkeypatch.setattr(Engine, "evaluate", slow)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: clocks.now, monotonic=lambda: clocks.seconds))
    resolved = resolve(None, (*tiny_settings, "eval.every=3"), environ={})
    assert launch(resolved, RunDir(tmp_path / "run"), Start(until=NOW + 1.5 * HOUR)) == Exit.RESUMABLE
    assert len(calls) == 2
    assert [(each["kind"], each["step"]) for each in events(tmp_path / "run", "evaluation", "stop")] == [("stop", 3)]
