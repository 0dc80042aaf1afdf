"""The ranks of one machine of several, where a single `hornbook train` was started on each (`hornbook launch`).

This process starts them as torchrun's agent would, each with its number; from there on they are ranks that a launcher
started (`rendezvous.py`). It computes nothing, passes signals on, and ends all of them when one fails.
"""

import functools
import signal
import sys
import time
from collections.abc import Callable, Sequence

from hornbook.errors import Exit, HornbookError, RankLostError
from hornbook.parallel.world import RankInfo
from hornbook.run.launch.heartbeat import Heartbeat, shared_heartbeats
from hornbook.run.launch.launcher_env import Node
from hornbook.run.launch.rank import Failure, Rank, diagnose_end, fork_rank, wait_for_ends
from hornbook.run.launch.rendezvous import LINGER_SECONDS
from hornbook.run.launch.signals import StopNow, StopSignals, leave_early, stop_signals_blocked
from hornbook.run.launch.supervisor import PERIOD

Join = Callable[[RankInfo, Heartbeat], Exit]
"""What a rank does; it calls `RankInfo.connect` itself."""


def run_node(node: Node, join: Join) -> Exit:
    """Run the ranks of this machine to their end; returns their exit code.

    Raises the error of the first rank to fail, RankLostError where it was killed or lost another.
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
            return _watch(ranks)
        except KeyboardInterrupt as interrupt:
            return StopNow.code_of(interrupt)
        finally:
            signals.pass_on = None
            for rank in ranks:
                rank.kill()
            for rank in ranks:
                rank.reap()


def _send(ranks: Sequence[Rank], number: int) -> None:
    for rank in ranks:
        rank.send(number)


def _be_rank(join: Join, info: RankInfo, heartbeat: Heartbeat) -> Exit:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # until there is a step to finish, leave at once
    leave_early()
    return join(info, heartbeat)


def _watch(ranks: Sequence[Rank]) -> Exit:
    running = list(ranks)
    while running:
        for rank in wait_for_ends(running, PERIOD):
            running.remove(rank)
        failed = [rank for rank in ranks if rank not in running and not rank.ended_cleanly]
        if failed:
            failure = diagnose_end(failed, running)
            _let_others_end([rank for rank in running if rank.number != failure.rank])
            raise _error_of(failure)
    return Exit(max(rank.end.si_status for rank in ranks))


def _let_others_end(running: list[Rank]) -> None:
    """Give the others time to end by themselves: rank 0, if it is here, tells other machines what is wrong."""
    deadline = time.monotonic() + LINGER_SECONDS + 1.0
    while running and time.monotonic() < deadline:
        ended = wait_for_ends(running, deadline - time.monotonic())
        running = [rank for rank in running if rank not in ended]


def _error_of(failure: Failure) -> HornbookError:
    if failure.lasting_error is not None:
        return failure.lasting_error
    if failure.report is None or failure.report.by_peer:
        return RankLostError(f"{failure}. Start the same command on all machines again, and the run goes on")
    sys.stderr.write(failure.report.traceback)
    return HornbookError(str(failure))
