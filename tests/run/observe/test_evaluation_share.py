"""`eval.share`: what evaluations may take of a run's time."""

import json
from collections.abc import Callable
from pathlib import Path

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.observe.evaluation import TimeShare

TASKS = 'eval.tasks=[{kind = "copy", items = 4, tokens = 4}]'


def test_tasks_go_first_then_the_whole_evaluation() -> None:
    time = TimeShare(0.1)
    assert time.level == 2, "nobody knows yet what it takes"
    time.training = 10.0
    time.add(1.0, 0.8)
    assert time.level == 0
    assert time.share == 1 / 11
    time.training = 11.0
    assert time.level == 1, "0.2 s of losses more are 1.2 of 12.2 s"
    time.training = 17.9
    assert time.level == 1, "1 s more would be 2 of 19.9 s"
    time.training = 18.1
    assert time.level == 2


def test_without_a_limit_nothing_is_put_off() -> None:
    time = TimeShare(1.0)
    time.add(100.0, 50.0)
    assert time.level == 2


def test_a_run_within_its_share_scores_less_often_and_says_so(tmp_path: Path, launch_run: Callable[..., Exit]) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, TASKS, "eval.every=2", "eval.share=0.0001") == Exit.DONE
    records = {path.name: json.loads(path.read_text()) for path in run.evals.iterdir()}
    assert sorted(records) == ["step-00000002.json", "step-00000012.json"], "the first one, and the last step"
    assert all("tasks" in each and 0 < each["share"] <= 1 for each in records.values())
    notes = run.log.read_text()
    assert notes.count("evaluation comes later: evaluations took") == 4
    assert "eval.share is 0.0%" in notes


def test_a_run_without_a_limit_scores_each_time(tmp_path: Path, launch_run: Callable[..., Exit]) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, TASKS, "eval.every=4") == Exit.DONE
    assert len(list(run.evals.iterdir())) == 3
