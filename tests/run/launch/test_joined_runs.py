"""Runs whose ranks something else started: torchrun, Slurm, or a person who sets the variables by hand."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.run.doctor.run_report import diagnose_run
from tests.processes import free_port, wait_until
from tests.run.launcher import Launcher, Started

Events = Callable[..., list[dict[str, Any]]]
Begin = Callable[..., Started]

TWO = ("parallel.data=2", "checkpoint.background=false")


def by_hand(rank: int, port: int, size: int = 2) -> dict[str, str]:
    """The variables that torchrun sets."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "localhost", **{name: str(number) for name, number in numbers.items()}}


def by_slurm(rank: int, job: int, size: int = 2) -> dict[str, str]:
    """The variables of a task that srun started on this machine."""
    numbers = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": size, "SLURM_JOB_ID": job}
    return {"SLURM_STEP_NODELIST": "localhost", **{name: str(number) for name, number in numbers.items()}}


@pytest.fixture
def begin(launcher: Launcher, tmp_path: Path) -> Begin:
    """begin(words, variables) starts one rank; what it says is a file of its own."""
    logs = (tmp_path / f"output-{number}.txt" for number in itertools.count())

    def start(words: Sequence[str], variables: dict[str, str], **how: Any) -> Started:
        return launcher.start(words, next(logs), environ=variables, **how)

    return start


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The same run on two ranks that hornbook starts itself."""
    return train_whole(*TWO)


@pytest.fixture
def words(tmp_path: Path, tiny_settings: tuple[str, ...]) -> list[str]:
    """The command line of a run in `tmp_path / "run"`."""
    return ["train", "--out", str(tmp_path / "run"), *tiny_settings, *TWO]


def test_ranks_with_variables_set_by_hand(tmp_path: Path, words: list[str], begin: Begin, same: Any, events: Events):
    port = free_port()
    first, second = (begin([*words, "--json"], by_hand(rank, port)) for rank in range(2))
    assert (first.wait(), second.wait()) == (Exit.DONE, Exit.DONE), first.text + second.text
    same(tmp_path / "run")
    assert '"status": "finished"' in first.text
    assert second.text == ""  # rank 0 speaks for all
    assert [event["attempt"] for event in events(tmp_path / "run", "start", "finish")] == [1, 1]


def test_ranks_of_slurm(tmp_path: Path, words: list[str], begin: Begin, same: Any):
    ranks = [begin(words, by_slurm(rank, os.getpid())) for rank in (1, 0)]
    assert [rank.wait() for rank in ranks] == [Exit.DONE] * 2, ranks[0].text + ranks[1].text
    same(tmp_path / "run")


def test_ranks_of_slurm_stop_before_the_end_of_their_job(
    tmp_path: Path, words: list[str], begin: Begin, same: Any, events: Events
):
    """With so little time left that none is for a step; started again without a limit they go on."""
    end = {"SLURM_JOB_END_TIME": str(int(time.time()) + 60)}
    near = {"deadline__FLOOR_SECONDS": 100.0}
    ranks = [begin(words, by_slurm(rank, os.getpid()) | end, **near) for rank in (1, 0)]
    assert [rank.wait() for rank in ranks] == [Exit.RESUMABLE] * 2, ranks[0].text + ranks[1].text
    assert [(each["step"], each["reason"]) for each in events(tmp_path / "run", "stop")] == [(0, "deadline")]
    ranks = [begin([*words, "--resume", "auto"], by_slurm(rank, os.getpid())) for rank in (1, 0)]
    assert [rank.wait() for rank in ranks] == [Exit.DONE] * 2, ranks[0].text + ranks[1].text
    same(tmp_path / "run")


@pytest.mark.slow
def test_ranks_of_torchrun_and_its_restart_after_a_kill(tmp_path: Path, words: list[str], same: Any):
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [sys.executable, *agent, "-m", "hornbook.cli.main", *words, "--resume", "auto"]
    saved = RunDir(tmp_path / "run").checkpoints / "step-00000004"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            wait_until(saved.exists)
            ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(ranks[-1]), signal.SIGKILL)
            said, _ = process.communicate(timeout=180)
        finally:
            process.terminate()  # the agent takes its ranks along
    assert process.returncode == 0, said
    same(tmp_path / "run")
    assert "restored from" in RunDir(tmp_path / "run").log.read_text()


def test_a_resume_of_joined_ranks_goes_on(tmp_path: Path, words: list[str], begin: Begin, events: Events):
    port, run = free_port(), tmp_path / "run"
    for attempt in ([*words, "train.tokens=600"], ["resume", str(run), "train.tokens=1450"]):
        ranks = [begin(attempt, by_hand(rank, port)) for rank in range(2)]
        assert [rank.wait() for rank in ranks] == [Exit.DONE] * 2, ranks[0].text + ranks[1].text
    assert [event["attempt"] for event in events(run, "start", "resume")] == [1, 2]


def test_a_signal_to_one_rank_stops_all_at_the_same_step(
    tmp_path: Path, words: list[str], begin: Begin, events: Events
):
    port, run = free_port(), tmp_path / "run"
    long = [*words, "train.tokens=5M", "checkpoint.every=0"]
    ranks = [begin(long, by_hand(rank, port)) for rank in range(2)]
    wait_until(RunDir(run).metrics.exists)
    os.kill(ranks[1].pid, signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [Exit.RESUMABLE] * 2, ranks[0].text + ranks[1].text
    assert [event["kind"] for event in events(run, "save", "stop")] == ["save", "stop"]


def test_rank_0_stays_until_all_have_read_that_the_run_is_over(words: list[str], begin: Begin):
    port, settings = free_port(), [*words, "checkpoint.every=0"]
    slow = {"exchange__POLL_SECONDS": 2.0}
    ranks = [begin(settings, by_hand(rank, port), **(slow if rank else {})) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [Exit.DONE] * 2, ranks[0].text + ranks[1].text


@pytest.mark.parametrize(("rank", "do"), [(0, "SIGKILL"), (1, "SIGKILL"), (1, "SIGSTOP")])
def test_a_rank_that_is_lost_in_a_save_is_not_waited_for_without_end(
    tmp_path: Path, words: list[str], begin: Begin, same: Any, rank: int, do: str
):
    port = free_port()
    fault = {"do": do, "rank": rank, "phase": "save", "step": 8}
    ranks = [
        begin(words, by_hand(each, port), faults=[fault], async_checkpointer__MIN_DEADLINE=3.0) for each in range(2)
    ]
    other = ranks[1 - rank]
    assert other.wait() == Exit.RESUMABLE, other.text
    assert "rank 1 did not do its part of a checkpoint" in other.text or rank == 0
    os.kill(ranks[rank].pid, signal.SIGKILL)
    ranks[rank].wait()
    again = [begin(["resume", str(tmp_path / "run")], by_hand(each, port)) for each in range(2)]
    assert [each.wait() for each in again] == [Exit.DONE] * 2, again[0].text + again[1].text
    same(tmp_path / "run")


def test_ranks_that_hang_end_themselves_and_keep_their_stacks(
    tmp_path: Path, words: list[str], begin: Begin, same: Any, events: Events
):
    """A launcher sees no silence: the rank that waits for the stopped one ends, and says where it waited."""
    port, run = free_port(), tmp_path / "run"
    hang = {"do": "SIGSTOP", "rank": 1, "phase": "forward_backward", "step": 7}
    ranks = [begin([*words, "guard.hang_seconds=3"], by_hand(rank, port), faults=[hang]) for rank in range(2)]
    assert ranks[0].wait() == Exit.RESUMABLE, ranks[0].text
    assert "error rank 0 was silent for 3." in ranks[0].text
    os.kill(ranks[1].pid, signal.SIGKILL)
    ranks[1].wait()
    assert [event["error"] for event in events(run, "fail")] == ["RankLostError"]
    (found,) = [each for each in diagnose_run(RunDir(run)).findings if each.severity == "fail"]
    assert found.name == "hang"
    assert "rank 0 waits in a collective, parallel/gradients/sums.py" in found.evidence
    again = [begin(["resume", str(run)], by_hand(each, port)) for each in range(2)]
    assert [each.wait() for each in again] == [Exit.DONE] * 2, again[0].text + again[1].text
    same(run)


def test_ranks_with_other_recipes_are_named_before_anything_is_written(tmp_path: Path, words: list[str], begin: Begin):
    port = free_port()
    for rank in [begin(words, by_hand(0, port)), begin([*words, "optim.lr=0.5"], by_hand(1, port))]:
        assert rank.wait() == Exit.USAGE
        assert "optim.lr: 0.01 on rank 0, 0.5 on rank 1" in rank.text
    assert not (tmp_path / "run").exists()


def test_ranks_with_other_run_directories_are_named(tmp_path: Path, words: list[str], begin: Begin):
    port = free_port()
    for rank in [begin(words, by_hand(0, port)), begin([*words, "--out", str(tmp_path / "b")], by_hand(1, port))]:
        assert rank.wait() == Exit.USAGE
        assert f"run directory: {tmp_path / 'run'} on rank 0, {tmp_path / 'b'} on rank 1" in rank.text


def test_a_world_of_another_size_is_told(tmp_path: Path, words: list[str], begin: Begin):
    rank = begin(words, by_hand(1, 1, size=4))
    assert rank.wait() == Exit.USAGE
    assert "started 4 ranks, and parallel.data is 2" in rank.text
    assert not (tmp_path / "run").exists()


def test_a_second_job_on_the_same_run_ends_on_all_its_ranks(tmp_path: Path, words: list[str], begin: Begin):
    port = free_port()
    run = RunDir(tmp_path / "run").create()
    with RunLock(run):
        first, second = (begin(words, by_hand(rank, port)) for rank in range(2))
        assert (first.wait(), second.wait()) == (Exit.IN_USE, Exit.IN_USE)
    assert f"{run.path} is in use by process {os.getpid()}" in first.text
    assert "rank 0: " in second.text


def test_a_directory_that_holds_a_run_is_told_on_all_ranks(whole: Path, words: list[str], begin: Begin):
    port = free_port()
    for rank in [begin([*words, "--out", str(whole)], by_hand(rank, port)) for rank in range(2)]:
        assert rank.wait() == Exit.USAGE
        assert f"{whole} already holds a run" in rank.text


def test_a_port_in_use_is_told(words: list[str], begin: Begin):
    with socket.create_server(("localhost", 0)) as taken:
        rank = begin(words, by_hand(0, taken.getsockname()[1]))
        assert rank.wait() == Exit.USAGE
    assert "(MASTER_PORT) is in use on this machine" in rank.text
