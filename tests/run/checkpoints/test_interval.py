"""The interval between saves that is best: it follows from measured times, and the ledger keeps it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hornbook.run.checkpoints import interval
from hornbook.run.checkpoints.interval import FIRST_STEPS, best_interval, is_due
from hornbook.run.ledger.ledger import Interval
from hornbook.run.ledger.uptime import Uptime
from tests.run.launcher import Launcher

Events = Callable[..., list[dict[str, Any]]]


def test_the_interval_is_that_of_least_loss() -> None:
    """The share of time lost, by the formula itself, is least at the interval that is chosen."""
    stall, seconds, hours = 0.8, 0.3, 2.0

    def lost(every: int) -> float:
        return stall / (every * seconds) + every * seconds / 2 / (hours * 3600)

    best = best_interval(stall, seconds, hours)
    assert best == 358
    assert min(range(1, 3000), key=lost) == best
    assert best_interval(1e-9, 10.0, 1.0) == 1


def test_intervals_count_from_where_they_were_chosen() -> None:
    assert [step for step in range(1, 61) if is_due(step, [])] == [FIRST_STEPS, 2 * FIRST_STEPS, 3 * FIRST_STEPS]
    chosen = [Interval(20, 3), Interval(29, 10)]
    assert [step for step in range(1, 61) if is_due(step, chosen)] == [20, 23, 26, 29, 39, 49, 59]


def test_after_the_run_went_back_time_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves of steps 20 and 40, then a rollback to before 40, and 40 again: no step lies between these two."""
    noted = list[dict[str, Any]]()
    world, now = SimpleNamespace(broadcast=lambda value: value), [0.0]
    ledger = SimpleNamespace(
        note=lambda kind, at, **fields: noted.append({"kind": kind, "step": at.step, **fields}),
        now=SimpleNamespace(uptime=Uptime(seconds=3 * 3600.0, failures=1)),
    )
    monkeypatch.setattr(interval.time, "monotonic", lambda: now[0])
    kept = interval.SaveInterval(1.0, [], cast("Any", world), cast("Any", ledger))
    for step, moment in ((20, 10.0), (40, 20.0), (40, 25.0), (30, 30.0), (60, 60.0)):
        now[0] = moment + 0.01  # each holds the loop for a hundredth of a second
        kept.measure(cast("Any", SimpleNamespace(step=step)), moment)
    assert [(each["step"], round(each["step_seconds"], 2)) for each in noted] == [(60, 1.0)]
    assert [(each["mtbf"], each["failures"]) for each in noted] == [((1.0 + 3.0) / (1 + 1), 1)]


@pytest.mark.parametrize("mode", [pytest.param("whole", marks=pytest.mark.slow), "killed"])
def test_a_run_saves_at_the_steps_of_its_ledger(
    tmp_path: Path,
    launcher: Launcher,
    tiny_settings: tuple[str, ...],
    events: Events,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(interval, "FIRST_STEPS", 4)
    always = {"interval__FIRST_STEPS": 4, "interval__CHANGE": -1.0}  # each measured interval counts, even the same
    settings = (*tiny_settings, "parallel.data=2", "checkpoint.every=auto", "guard.mtbf=1e-7", "train.tokens=6400")
    death = {"do": "SIGKILL", "generation": 0, "rank": 1, "phase": "clip", "step": 44}
    words = ["train", "--out", str(run), *settings, "eval.every=0"]
    started = launcher.start(words, tmp_path / "output.txt", faults=[death] if mode == "killed" else [], **always)
    assert started.wait() == 0, started.text
    records = events(run, "save_interval")
    chosen = [Interval(each["step"], each["every"]) for each in records]
    assert chosen
    assert all(each["failures"] == each["attempt"] - 1 for each in records)
    assert all(1e-7 / 2 < each["mtbf"] < 1.0 for each in records)
    assert len({each.step for each in chosen}) == len(chosen)
    saves = {each["step"] for each in events(run, "save", "resume")}  # a death may come between a save and its record
    assert saves | {44} >= {step for step in range(1, 50) if is_due(step, chosen)}
    assert saves <= {step for step in range(1, 50) if is_due(step, chosen)} | {50}
