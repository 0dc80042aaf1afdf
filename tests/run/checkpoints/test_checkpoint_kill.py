"""kill -9 of a real training process, short form: the whole of it is `python -m benchmarks.reliability.kill`."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_killed_runs_end_equal_to_the_uninterrupted_one(
    tmp_path: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.reliability import kill

    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setattr(kill, "STEPS", 24)
    monkeypatch.setitem(kill.SETTINGS, "train.tokens", 24 * kill.BATCH)
    (tmp_path / "data").symlink_to(tiny_corpus)
    kill.finish(kill.train_command(tmp_path / "data", tmp_path / "reference", kill.SETTINGS))
    inside, anywhere = (kill.attempt(number, tmp_path, 5.0, kill.SETTINGS) for number in (1, 2))
    assert inside.problems == []
    assert anywhere.problems == []
    assert len(inside.at_steps) == 1
    assert len(anywhere.at_steps) >= 1
    assert inside.kind == "save"
    assert anywhere.at_steps[0] > 0
