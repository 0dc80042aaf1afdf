"""Batches that grow: after any stop, on any ranks and around skipped samples the sizes are a function of the clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.ledger.ledger import At, Ledger
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]

RAMP = (
    "train.ramp=linear",
    "train.ramp.start_tokens=64",
    "train.ramp.over_tokens=600",
    "train.batch_tokens=256",
    "train.tokens=1600",
    "checkpoint.every=3",
    "eval.every=4",
    "eval.tokens=64",
)
SIZES = [64] * 4 + [128] * 2 + [192] + [256] * 3 + [64 + 64]
"""Rows of 32 tokens, two to a microbatch: 2, 4, 6 and 8 rows; the last step takes what is left."""


def stopped_at(folder: Path, launch_run: Launch, *steps: int) -> RunDir:
    """A run that was stopped at each of the steps."""
    run = RunDir(folder).create()
    for number, step in enumerate(steps):
        write_request(run, Request(action="stop", at_step=step))
        words = () if number else RAMP
        assert launch_run(folder, *words, mode="resume" if number else "start") == Exit.RESUMABLE
    return run


def test_a_run_grows_as_it_should_and_counts_intervals_in_steps(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events
) -> None:
    assert launch_run(tmp_path / "run", *RAMP) == Exit.DONE
    steps = branch(tmp_path / "run")
    assert [step["step_tokens"] for step in steps] == SIZES
    assert [step["first_sample"] for step in steps] == [sum(SIZES[:k]) // 32 for k in range(len(SIZES))]
    assert [step["lr"] for step in steps[:3]] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])  # a warm-up of three steps
    assert [record["step"] for record in events(tmp_path / "run", "save")] == [3, 6, 9, 11]
    assert [record["step"] for record in events(tmp_path / "run", "evaluation")] == [
        4,
        8,
        11,
        11,
    ]  # the last, then all rows
    log = RunDir(tmp_path / "run").log.read_text(encoding="utf-8")
    assert "up to 256 tokens/step · 11 steps" in log
    assert "tokens=64 batch=64 eta" in log


def test_stops_within_the_ramp_make_no_difference(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "whole", *RAMP)
    run = stopped_at(tmp_path / "parts", launch_run, 2, 4, 5, 7)
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tmp_path / "whole")


def test_skipped_samples_move_the_rows_and_not_the_sizes(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    run = stopped_at(tmp_path / "run", launch_run, 3)
    with Ledger(run) as ledger:
        ledger.note("rewind", At(3, 192), windows=[(8, 18)])
    assert launch_run(run.path, mode="resume") == Exit.DONE
    steps = branch(run.path)
    assert [step["step_tokens"] for step in steps] == SIZES
    assert [step["first_sample"] for step in steps][3:6] == [6, 18, 22]


def test_a_ramp_may_change_on_the_way(tmp_path: Path, launch_run: Launch, branch: Branch, events: Events) -> None:
    run = stopped_at(tmp_path / "run", launch_run, 3)
    assert launch_run(run.path, "train.ramp.over_tokens=300", mode="resume") == Exit.DONE
    assert [step["step_tokens"] for step in branch(run.path)] == [64, 64, 64, 128, *[256] * 5]
    (change,) = events(run.path, "resume")[0]["changes"]
    assert (change["key"], change["old"], change["new"]) == ("train.ramp.over_tokens", 600, 300)


def test_ranks_without_a_microbatch_wait_for_the_ramp(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch
) -> None:
    """One microbatch is less than four ranks, three are no multiple: with exact sums the same bits."""
    for ranks in (1, 4):
        words = [*tiny_settings, *RAMP, "model.width=64", "parallel.exact=true", f"parallel.data={ranks}"]
        started = launcher.start(["train", "--out", str(tmp_path / f"{ranks}"), *words], tmp_path / f"{ranks}.log")
        assert started.wait() == Exit.DONE, started.text
    assert branch(tmp_path / "4") == branch(tmp_path / "1")


def test_a_rank_may_take_longer_for_a_larger_batch() -> None:
    """Silence is a hang after five times the longest so far: a batch of sixteen times must not be taken for one."""
    heartbeat = Heartbeat()
    for phase in ("data", "forward_backward", "clip", "forward_backward", "clip"):
        heartbeat.enter(phase, At())
    heartbeat._newest, heartbeat._slowest = [7] * len(heartbeat._newest), [50] * len(heartbeat._slowest)
    heartbeat.expect_growth(16)
    heartbeat.enter("forward_backward", At())
    assert heartbeat.read().slowest == 16 * 7
    heartbeat.expect_growth(2)
    heartbeat.enter("save", At())
    assert heartbeat.read().slowest == 50  # what does not depend on the batch
