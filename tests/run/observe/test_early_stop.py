"""`eval.stop` in runs: one decision for all ranks, in the ledger before it takes effect, and the same after a kill."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
STOP = ("eval.every=2", "eval.stop.kind=patience", "eval.stop.evaluations=2", "eval.stop.gain=10", "eval.stop.after=0")
"""No loss is lower by 10 nats: after the first evaluation two pass, of steps 4 and 6."""


def shortened(folder: Path) -> list[tuple[int, str]]:
    records = read_records(RunDir(folder).events)
    return [(each["step"], each["reason"]) for each in records if each["kind"] == "shorten"]


REASON = "eval.stop: no validation loss below"


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_it_ends_all_ranks_by_the_ledger(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch, ranks: int
) -> None:
    words = ["train", "--out", str(tmp_path / "run"), *tiny_settings, *STOP, "eval.stop.rest=0.5"]
    words.append(f"parallel.data={ranks}")
    started = launcher.start(words, tmp_path / "log")
    assert started.wait() == Exit.DONE, started.text
    ((step, reason),) = shortened(tmp_path / "run")
    assert (step, reason.startswith(REASON)) == (6, True)
    steps = branch(tmp_path / "run")
    assert [each["step"] for each in steps] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert steps[8]["lr"] < 0.35 * steps[5]["lr"]  # the cosine ends with the run
    assert "shortened after step 6 from 12 to 9 steps (eval.stop: no validation loss" in started.text


def test_a_resume_goes_by_what_was_decided_and_by_losses_of_before(
    tmp_path: Path, launch_run: Launch, branch: Branch
) -> None:
    stop = (*STOP[1:], "eval.every=1", "eval.stop.rest=1.0")  # after step 3 for three steps more
    launch_run(tmp_path / "whole", *stop)
    assert [step for step, _ in shortened(tmp_path / "whole")] == [3]
    run = RunDir(tmp_path / "parts").create()
    for number, step in enumerate((2, 3, 4)):
        write_request(run, Request(action="stop", at_step=step))
        assert launch_run(run.path, *(() if number else stop), mode="resume" if number else "start") == Exit.RESUMABLE
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert [step for step, _ in shortened(run.path)] == [3]
    assert branch(run.path) == branch(tmp_path / "whole")
