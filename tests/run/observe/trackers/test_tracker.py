"""Trackers that raise, hang or are slow: the run has the same steps, goes on, ends, and is told once."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.ledger.ledger import At, Ledger
from hornbook.run.observe.trackers import packages, tracker
from hornbook.run.observe.trackers.tracker import TrackerThread
from hornbook.settings.recipe import Recipe
from hornbook.settings.training import WandbConfig

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
ON = 'log.trackers=[{kind = "wandb"}]'


class Package(ModuleType):
    """A wandb whose functions do what the test says."""

    def __init__(self, name: str, log: Callable[..., object]) -> None:
        super().__init__(name)
        self.__spec__ = SimpleNamespace(name=name)  # pyright: ignore[reportAttributeAccessIssue]
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0
        self._log = log

    def init(self, **settings: Any) -> Any:
        vars(self).get("print", print)(f"* {self.__name__} says so")
        self.begun.append(settings)
        return SimpleNamespace(_next_step=max((step for step, _ in self.logged), default=-1) + 1)

    def Table(self, columns: list[str], data: list[list[Any]]) -> list[dict[str, Any]]:
        return [dict(zip(columns, row, strict=True)) for row in data]

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._log()
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Package]]:
    held = threading.Event()

    def make(log: Callable[..., object] = lambda: None, name: str = "wandb") -> Package:
        found = Package(name, held.wait if log is hang else log)
        monkeypatch.setitem(sys.modules, name, found)
        return found

    yield make
    held.set()


def hang() -> None:
    """Stands for a call that does not return before the test ends."""


def test_a_tracker_gets_every_step_and_evaluation(
    tmp_path: Path, launch_run: Launch, package: Any, branch: Branch
) -> None:
    wandb, trackio = package(), package(name="trackio")
    both = 'log.trackers=[{kind = "wandb", project = "p"}, {kind = "trackio"}]'
    assert launch_run(tmp_path / "run", both, "eval.every=6") == Exit.DONE
    for each in (wandb, trackio):
        losses = [(step, metrics["train/loss"]) for step, metrics in each.logged if "train/loss" in metrics]
        assert losses == [(step["step"], step["loss"]) for step in branch(tmp_path / "run")]
        assert [step for step, metrics in each.logged if "validation/loss" in metrics] == [6, 12]
        assert len(each.begun) == each.finished == 1
    assert wandb.begun[0]["mode"] == "offline"
    assert wandb.begun[0]["project"] == "p"
    assert wandb.begun[0]["config"]["train"]["batch_tokens"] == 128
    assert trackio.begun[0]["name"] == wandb.begun[0]["id"]


def test_trackio_shows_steps_that_are_made_again_once(
    tmp_path: Path, launch_run: Launch, package: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trackio, run = package(name="trackio"), RunDir(tmp_path / "run")
    on = 'log.trackers=[{kind = "trackio"}]'
    assert launch_run(run.path, on, "train.tokens=1280") == Exit.DONE
    path = max(run.checkpoints.glob("step-*"))
    path.rename(run.checkpoints / f"damaged-{path.name}")
    assert launch_run(run.path, "train.tokens=1450", mode="resume") == Exit.DONE
    losses = [step for step, metrics in trackio.logged if "train/loss" in metrics]
    assert losses == list(range(1, 13))
    printed = capsys.readouterr()
    assert "* trackio says so" not in printed.out
    assert printed.err.count("* trackio says so") == 2


def test_wandb_gets_samples_and_the_mode_of_the_environment(
    tmp_path: Path, launch_run: Launch, package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = package()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    words = ("eval.every=6", "eval.prompt=the model", "eval.sample_tokens=3")
    assert launch_run(tmp_path / "run", ON, *words) == Exit.DONE
    ((row,), (last,)) = [metrics["sample"] for _, metrics in wandb.logged if "sample" in metrics]
    assert (row["step"], row["prompt"], last["step"]) == (6, "the model", 12)
    assert launch_run(tmp_path / "other", 'log.trackers=[{kind = "wandb", mode = "offline"}]') == Exit.DONE
    assert [each["mode"] for each in wandb.begun] == ["disabled", "offline"]


def test_the_process_of_a_wandb_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would wait for it at exit."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    sleep = shutil.which("sleep")
    assert sleep is not None
    children = []
    for name in ("wandb-core", "other"):
        (tmp_path / name).symlink_to(sleep)
        children.append(subprocess.Popen([tmp_path / name, "30"]))
    gate = threading.Event()
    hanging = packages.PackageTracker(WandbConfig(), Recipe(), RunDir(tmp_path))
    vars(hanging)["step"] = lambda _: gate.wait()
    step: Any = SimpleNamespace(record=lambda: {"step": 1})
    with TrackerThread(hanging, lambda _: None) as thread:
        thread(step)
        thread.close(0.05)
    assert children[0].wait(timeout=5) == -signal.SIGKILL
    assert children[1].poll() is None
    children[1].kill()
    children[1].wait()
    gate.set()


def test_a_tracker_knows_the_attempts_of_a_run_and_no_other_run(tmp_path: Path) -> None:
    """One in a folder of the same name, or made anew in the same folder, is another run."""
    found = set[str]()
    for place in ("one/runs/small", "two/runs/small", "one/runs/small"):
        run = RunDir(tmp_path / place)
        shutil.rmtree(run.path, ignore_errors=True)
        for attempt in (1, 2):
            with Ledger(run.create()) as ledger:
                ledger.note("start" if attempt == 1 else "resume", At())
            found.add(packages._identity(run))
    assert len(found) == 3
    assert all(each.startswith("small-") for each in found)


def fail() -> None:
    raise SystemExit("no login")


@pytest.mark.parametrize(
    ("what", "told"),
    [(fail, "wandb gets nothing any more: no login"), (hang, "wandb does not end: the run ends without")],
)
def test_one_that_fails_or_hangs_changes_nothing(
    tmp_path: Path,
    launch_run: Launch,
    package: Any,
    branch: Branch,
    monkeypatch: pytest.MonkeyPatch,
    what: Any,
    told: str,
) -> None:
    monkeypatch.setattr(TrackerThread.close, "__defaults__", (0.3,))
    package(what)
    launch_run(tmp_path / "without")
    started = time.monotonic()
    assert launch_run(tmp_path / "with", ON) == Exit.DONE
    assert time.monotonic() - started < 20
    assert branch(tmp_path / "with") == branch(tmp_path / "without")
    assert RunDir(tmp_path / "with").log.read_text().count(told) == 1


def test_a_slow_one_delays_no_step_and_drops_what_does_not_fit() -> None:
    seen, warnings = list[int](), list[str]()
    gate = threading.Event()

    class Slow:
        name = "slow"

        def step(self, record: Mapping[str, Any]) -> None:
            gate.wait()
            seen.append(record["step"])

        def evaluation(self, record: Mapping[str, Any]) -> None:
            raise AssertionError(record)

        def sample(self, record: Mapping[str, Any]) -> None:
            raise AssertionError(record)

        def close(self) -> None:
            seen.append(-1)

        def abandon(self) -> None:
            raise AssertionError

    step: Any = SimpleNamespace(record=lambda: {"step": 1})
    with TrackerThread(Slow(), warnings.append, size=4) as thread:
        started = time.monotonic()
        for _ in range(1000):
            thread(step)
        assert time.monotonic() - started < 1
        gate.set()
    assert 4 <= len(seen) <= 6
    assert seen[-1] == -1
    assert warnings == ["warning: slow is too slow: some steps do not reach it"]


def test_a_second_signal_waits_for_no_tracker() -> None:
    gate, warnings = threading.Event(), list[str]()
    hanging: Any = SimpleNamespace(name="slow", step=lambda _: gate.wait(), close=lambda: None, abandon=lambda: None)
    step: Any = SimpleNamespace(record=lambda: {"step": 1})
    started = time.monotonic()

    def interrupted() -> None:
        with TrackerThread(hanging, warnings.append) as thread:
            thread(step)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - started < tracker.CLOSE_SECONDS / 2
    assert warnings == ["warning: slow does not end: the run ends without it"]
    gate.set()


def test_without_the_package_the_remedy_is_named(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"log\.trackers needs wandb, which is not installed: .*track"):
        launch_run(tmp_path / "run", ON)
    assert not (tmp_path / "run").exists()
    assert tracker.CLOSE_SECONDS <= 30
