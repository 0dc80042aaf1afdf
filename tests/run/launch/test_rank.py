"""One rank as its supervisor sees it: how it ended, and whose fault that was."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, RankLostError, StorageError, UsageError
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.launch import rank as ranks
from hornbook.run.launch.launch import check_supervision
from hornbook.run.launch.rank import (
    Rank,
    Report,
    await_stacks,
    diagnose_end,
    diagnose_hang,
    fork_rank,
    wait_for_ends,
)
from tests.processes import wait_until

Fork = Callable[..., Rank]


@pytest.fixture
def fork() -> Iterator[Fork]:
    """fork(loop, number) starts a rank; none is left after the test."""
    started: list[Rank] = []

    def start(loop: Callable[[], Exit], number: int = 0) -> Rank:
        started.append(fork_rank(Heartbeat(rank=number), loop))
        return started[-1]

    yield start
    for rank in started:
        rank.kill()
        rank.reap()


def fail(error: Exception) -> Exit:
    raise error


def sleep() -> Exit:
    time.sleep(60)
    return Exit.DONE


def wait_until_up(*started: Rank) -> None:
    """Until each catches the signal on which it writes its stacks."""
    for rank in started:
        wait_until(lambda rank=rank: caught_signals(rank) >> (signal.SIGUSR2 - 1) & 1)


def caught_signals(rank: Rank) -> int:
    """A bit for each signal that a rank has a handler for."""
    return int(Path(f"/proc/{rank.pid}/status").read_text().split("SigCgt:")[1].split()[0], 16)


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


LOST = RuntimeError("[/pair.cc:553] Connection closed by peer [127.0.0.1]:31337")


@pytest.mark.parametrize(
    ("error", "ours", "by_peer"),
    [
        (UsageError("write it otherwise"), True, False),
        (KeyError("strange"), False, False),
        (RuntimeError("shapes differ"), False, False),
        (TimeoutError("timed out"), False, False),
        (LOST, False, True),
        (raised(RankLostError("another rank went away"), LOST), True, True),
        (raised(StorageError("the disk"), OSError("timeout")), True, False),
    ],
)
def test_a_report_knows_whose_fault_it_was(error: Exception, *, ours: bool, by_peer: bool) -> None:
    report = Report.of(error)
    assert (report.kind, report.text) == (type(error).__name__, str(error))
    assert (report.ours, report.by_peer) == (ours, by_peer)


def test_a_rank_leaves_with_the_code_of_its_loop(fork: Fork) -> None:
    rank = fork(lambda: Exit.RESUMABLE)
    assert wait_for_ends([rank], 60) == [rank]
    assert (rank.ended_cleanly, rank.killed, rank.end.si_status, rank.report) == (True, False, Exit.RESUMABLE, None)


def test_a_rank_leads_its_own_process_group(fork: Fork) -> None:
    rank = fork(sleep)
    assert os.getpgid(rank.pid) == rank.pid != os.getpgid(0)


def test_what_a_rank_started_dies_with_it(fork: Fork) -> None:
    read, write = os.pipe()

    def start_another() -> Exit:
        if os.fork() == 0:
            os.write(write, b"x")
        return sleep()

    rank = fork(start_another)
    assert os.read(read, 1) == b"x"
    os.close(write)
    rank.kill()
    assert os.read(read, 1) == b""  # nobody has the other end any more
    os.close(read)


def test_an_error_is_reported_with_its_traceback(fork: Fork) -> None:
    rank = fork(lambda: fail(UsageError("write it otherwise")))
    assert wait_for_ends([rank], 60) == [rank]
    assert rank.report is not None
    assert (rank.report.kind, rank.report.text, rank.report.ours) == ("UsageError", "write it otherwise", True)
    assert "in fail" in rank.report.traceback


def test_the_first_to_fail_is_to_blame_even_if_it_ends_last(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 60.0)
    read, write = os.pipe()

    def late() -> Exit:
        os.read(read, 1)
        time.sleep(0.3)
        raise ValueError("the cause")

    victim, culprit = fork(lambda: fail(LOST), 0), fork(late, 1)
    (first,) = wait_for_ends([victim, culprit], 60)
    assert first is victim
    os.write(write, b"x")
    os.close(read)
    os.close(write)
    failure = diagnose_end([victim], [culprit])
    assert str(failure) == "rank 1 failed with ValueError: the cause (step 0, setup)"
    assert failure.lasting_error is None


def test_a_killed_rank_comes_before_one_that_failed(fork: Fork) -> None:
    victim, culprit = fork(lambda: fail(ValueError("odd")), 0), fork(sleep, 1)
    wait_until_up(culprit)
    culprit.send(signal.SIGSEGV)
    for rank in (victim, culprit):
        assert wait_for_ends([rank], 60)
    assert diagnose_end([victim, culprit], []).cause == "was killed by SIGSEGV"
    assert "in sleep" in culprit.stacks  # a crash leaves its stacks


@pytest.mark.parametrize(
    ("number", "kills", "told"), [("SIGKILL", 1, True), ("SIGKILL", 0, False), ("SIGSEGV", 1, False)]
)
def test_a_lack_of_memory_is_told_where_the_system_killed_for_it(
    fork: Fork, monkeypatch: pytest.MonkeyPatch, number: str, kills: int, told: bool
) -> None:
    assert ranks.memory_kills() >= 0
    monkeypatch.setattr(ranks, "memory_kills", lambda: 3)
    victim = fork(sleep)
    wait_until_up(victim)
    monkeypatch.setattr(ranks, "memory_kills", lambda: 3 + kills)
    victim.send(signal.Signals[number])
    assert wait_for_ends([victim], 60)
    more = ": memory ran out, and the system killed a process" if told else ""
    assert diagnose_end([victim], []).cause == f"was killed by {number}{more}"


def test_ranks_that_gave_up_on_a_stopped_one_name_it(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.1)
    victim, culprit = fork(lambda: fail(RuntimeError("timed out")), 0), fork(sleep, 1)
    culprit.send(signal.SIGSTOP)
    assert wait_for_ends([victim], 60)
    wait_until(lambda: culprit.stopped)
    assert str(diagnose_end([victim], [culprit])) == "rank 1 was stopped, and the others gave up (step 0, setup)"


def test_silent_ranks_write_their_stacks(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "DUMP_SECONDS", 60.0)  # it ends when all have written
    one, other = fork(sleep, 0), fork(sleep, 1)
    wait_until_up(one, other)
    failure = diagnose_hang({one: 11.0, other: 12.0}, [one, other])
    assert (failure.rank, failure.cause) == (1, "was silent for 12.0 s")
    wait_until(lambda: all("in sleep" in rank.stacks for rank in (one, other)))


def test_a_process_that_cannot_be_killed_is_named(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = fork(sleep)
    monkeypatch.setattr(ranks, "KILL_SECONDS", 0.1)
    with pytest.raises(StorageError, match=rf"rank 0 \(process {rank.pid}\) cannot be killed"):
        rank.reap()
    monkeypatch.undo()  # the fixture kills it, which may take longer


def test_a_process_with_threads_does_not_fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 3)
    with pytest.raises(UsageError, match=r"2 other threads.*process of its own"):
        check_supervision()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="Linux only: use torchrun"):
        check_supervision()


def test_stacks_are_awaited_until_no_frame_is_added() -> None:
    """A rank writes them frame by frame, and may be held up between two."""

    class Slow:
        def __init__(self) -> None:
            self.looks = 0

        @property
        def stacks(self) -> str:
            self.looks += 1
            return "frame\n" * min(self.looks // 5, 3)

    slow: Any = Slow()
    await_stacks([slow])
    assert slow.stacks == "frame\n" * 3
