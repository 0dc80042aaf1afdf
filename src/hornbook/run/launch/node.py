"""The ranks of one machine of several, where a single `hornbook train` was started on each (`hornbook launch`).

This process starts them as torchrun's agent would, each with its number; from there on they are ranks that a launcher
started (`rendezvous.py`). It computes nothing, passes signals on, and ends all of them when one fails or they hang.
"""

import functools
import signal
import sys
import time
from collections.abc import Callable, Sequence

from hornbook.errors import Exit, HornbookError, RankLostError
from hornbook.files.run_directory import RunDir
from hornbook.parallel.world import RankInfo
from hornbook.run.job.heartbeat import Heartbeat, shared_heartbeats
from hornbook.run.job.signals import StopNow, StopSignals, leave_early, stop_signals_blocked
from hornbook.run.launch.launcher_env import Node
from hornbook.run.launch.rank import (
    Failure,
    Rank,
    diagnose_end,
    diagnose_hang,
    end_ranks,
    fork_rank,
    keep_evidence,
    look_at,
    note_hang,
    wait_for_ends,
)
from hornbook.run.launch.rendezvous import LINGER_SECONDS
from hornbook.run.ledger.ledger import read_past

Join = Callable[[RankInfo, Heartbeat], Exit]
"""What a rank does; it calls `RankInfo.connect` itself."""


def run_node(node: Node, join: Join, run: RunDir, hang_seconds: float) -> Exit:
    """Run the ranks of this machine to their end; returns their exit code. `hang_seconds`: as `guard.hang_seconds`.

    Raises the error of the first rank to fail, RankLostError where it was killed, lost another, or all wait for one
    that hangs, here or elsewhere: each machine sees its own ranks fall silent, and keeps their stacks.
    """
    with StopSignals(announces=False) as signals:  # rank 0 answers
        ranks = list[Rank]()
        try:
            with stop_signals_blocked():
                heartbeats = shared_heartbeats(node.size)
                for info in node.ranks():
                    loop = functools.partial(_be_rank, join, info, heartbeats[info.rank])
                    ranks.append(fork_rank(heartbeats[info.rank], loop))
                signals.pass_on = functools.partial(_send, ranks)
            outcome = _watch(ranks, run, hang_seconds)
        except KeyboardInterrupt as interrupt:
            return StopNow.code_of(interrupt)
        finally:
            signals.pass_on = None
            end_ranks(ranks)
    if not isinstance(outcome, Failure):
        return outcome
    error = _error_of(outcome)
    if node.number == 0:
        note_hang(run, outcome, error)
    raise error


def _send(ranks: Sequence[Rank], number: int) -> None:
    for rank in ranks:
        rank.send(number)


def _be_rank(join: Join, info: RankInfo, heartbeat: Heartbeat) -> Exit:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # until there is a step to finish, leave at once
    leave_early()
    return join(info, heartbeat)


def _watch(ranks: Sequence[Rank], run: RunDir, hang_seconds: float) -> Exit | Failure:
    """The exit code of ranks that end, or what is known of one that hangs; raises the error of one that fails."""
    for seen in look_at(ranks, hang_seconds):
        if seen.failed:
            failure = diagnose_end(seen.failed, seen.running)
            _let_others_end([rank for rank in seen.running if rank.number != failure.rank])
            raise _error_of(failure)
        hanging = {rank: seconds for rank, seconds in seen.silent.items() if rank.heartbeat.read().sequence}
        if hanging:  # before its first beat a rank waits for other machines to arrive
            failure = diagnose_hang(hanging, seen.running)
            keep_evidence(run, read_past(run).attempt, ranks)
            return failure
    return Exit(max(rank.end.si_status for rank in ranks))


def _let_others_end(running: list[Rank]) -> None:
    """Give the others time to end by themselves: rank 0, if it is here, tells other machines what is wrong."""
    deadline = time.monotonic() + LINGER_SECONDS + 1.0
    while running and time.monotonic() < deadline:
        ended = wait_for_ends(running, deadline - time.monotonic())
        running = [rank for rank in running if rank not in ended]


def _error_of(failure: Failure) -> HornbookError:
    if failure.own_error is not None:
        return failure.own_error
    if failure.report is None or failure.report.by_peer:
        return RankLostError(f"{failure}. Start the same command on all machines again, and the run goes on")
    sys.stderr.write(failure.report.traceback)
    return HornbookError(str(failure))
