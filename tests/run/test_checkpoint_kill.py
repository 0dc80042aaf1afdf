"""kill -9 of a real training process, short form: the whole of it is `python -m benchmarks.kill`."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_killed_runs_end_equal_to_the_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import kill

    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setattr(kill, "STEPS", 24)
    monkeypatch.setitem(kill.SETTINGS, "train.tokens", 24 * kill.BATCH)
    trials, _ = kill.run_trials(2, tmp_path, print)
    assert [trial.problems for trial in trials] == [[]] * len(trials)
    assert sum(len(trial.at_steps) for trial in trials) >= 2
