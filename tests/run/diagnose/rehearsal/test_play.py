"""Rehearsals: the command as a whole, and that a run which is not equal is told."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.diagnose.rehearsal import play
from hornbook.run.diagnose.rehearsal.cases import Case, all_cases
from hornbook.run.diagnose.rehearsal.judge import differences, not_finite
from hornbook.run.diagnose.rehearsal.play import Rehearsal
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]
PLAIN = Case("nothing", (), "finish", ({"do": "slow", "at": {"step": 1}},))


class Here:
    """A process of a rehearsal that trains in this one: its ends are scripted."""

    codes: ClassVar[list[int]]
    train: ClassVar[Callable[[RunDir], object]]

    def __init__(self, _: Any, run: RunDir, *__: Any) -> None:
        type(self).train(run)

    def wait(self, _: Any = None) -> int:
        return type(self).codes.pop(0)

    def left_behind(self) -> list[int]:
        return []


@pytest.fixture
def rehearsal(tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    """One of the tiny run, with a reference."""
    launch_run(tmp_path / "reference")
    monkeypatch.setattr(play, "Process", Here)
    return Rehearsal(resolve(None, environ={}), tmp_path)


def test_a_run_with_other_bits_another_end_or_without_its_record_is_told(
    rehearsal: Rehearsal, launch_run: Launch
) -> None:
    Here.codes, Here.train = [0], lambda run: None if run.metrics.exists() else launch_run(run.path, "seed=2")
    played = rehearsal.play(1, PLAIN)
    assert any(text.startswith("tokens: step 1") for text in played.problems)
    assert any(text.startswith("weights: step") for text in played.problems)
    assert "the ledger has no fault" in played.problems
    Here.codes, Here.train = [1, 0], lambda run: None if run.metrics.exists() else launch_run(run.path)
    played = rehearsal.play(2, PLAIN)
    assert played.problems == ["exit codes 1, 0 instead of 0", "the ledger has no fault"]


def test_an_equal_run_has_no_differences(tmp_path: Path, launch_run: Launch) -> None:
    for name in ("a", "b"):
        launch_run(tmp_path / name)
    first, second = RunDir(tmp_path / "a"), RunDir(tmp_path / "b")
    assert differences(first, second, 12) == []
    assert not_finite(second, 12, 0) == []
    (second.checkpoints / ".tmp-step-00000008").mkdir()
    assert differences(first, second, 12) == ["left behind: .tmp-step-00000008"]
    assert not_finite(second, 13, 0)[0] == "12 steps instead of 13"


def test_a_case_that_needs_more_ranks_is_skipped_with_the_reason(rehearsal: Rehearsal) -> None:
    case = next(case for case in all_cases() if case.ranks == 2)
    assert rehearsal.play(3, case).skipped == "needs 2 ranks, the run has 1: --parallel.data 2"


def test_without_validation_text_no_evaluation_is_killed(rehearsal: Rehearsal) -> None:
    """It would never begin, and the case fail because its fault never struck."""
    case = next(case for case in all_cases() if case.evaluates)
    assert rehearsal.play(4, case).skipped == "the data has no validation text"
    rehearsal.evaluates = True
    Here.codes, Here.train = [1], lambda _: None
    played = rehearsal.play(4, case)
    assert not played.skipped
    assert played.problems == ["exit codes 1 instead of died, 0"]


@pytest.mark.parametrize(
    ("codes", "told"),
    [(["0"], "exit 0"), (["75", "0"], "exit 75, then exit 0"), (["-9", "0"], "killed, then exit 0")],
)
def test_what_happened_is_told_in_words(tmp_path: Path, codes: list[str], told: str) -> None:
    assert play.happened(RunDir(tmp_path), codes) == told


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--parallel.data", "2", "--parallel.shard", "everything")])
def test_a_recipe_survives_its_rehearsal(tmp_path: Path, tiny_corpus: Path, words: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    data = () if words else ("--data", str(tiny_corpus))  # else of its own
    command = [sys.executable, "-m", "hornbook", "rehearse", "tiny", *words, *data, "--json"]
    environ = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False, env=environ, timeout=1000
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failed"] == 0
    assert found["passed"] + found["skipped"] == len(all_cases())
    assert found["skipped"] == (0 if words else sum(case.ranks > 1 for case in all_cases()))
