"""Why a generation of ranks ended: the rank that failed first, the evidence that is kept, and whether to try again."""

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hornbook.errors
from hornbook.errors import HornbookError, StorageError
from hornbook.files.durable import write_atomic
from hornbook.files.run_directory import RunDir
from hornbook.run.launch.heartbeat import RankStatus
from hornbook.run.launch.rank import Rank, Report, wait_for_ends

GRACE_SECONDS = 1.0
"""Wait for the first rank to fail, where the others ended because it was gone."""
DUMP_SECONDS = 3.0
"""Longest wait for hanging ranks to write their stacks."""
QUIET_SECONDS = 0.5
"""Time without a further frame after which stacks count as complete."""


@dataclass(frozen=True)
class Failure:
    """The first rank to fail, and how."""

    rank: int
    cause: str
    """The predicate of a sentence about the rank: `was killed by SIGKILL`."""
    status: RankStatus
    """Its last heartbeat."""
    report: Report | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} {self.cause} (step {self.status.step}, {self.status.phase})"

    def record(self) -> dict[str, Any]:
        """Fields for the ledger."""
        return {"rank": self.rank, "cause": self.cause, "phase": self.status.phase}

    @property
    def lasting_error(self) -> HornbookError | None:
        """The rank's own error, where a restart would meet it again; else None."""
        if self.report is None or not self.report.ours or self.report.by_peer:
            return None
        return getattr(hornbook.errors, self.report.kind, HornbookError)(self.report.text)


def diagnose_end(ended: list[Rank], running: Sequence[Rank]) -> Failure:
    """The first rank to fail; the others failed because it was gone, a moment later or even before it ended."""
    deadline, running = time.monotonic() + GRACE_SECONDS, list(running)
    while running and all(_order(rank) == _LOST_ANOTHER for rank in ended) and time.monotonic() < deadline:
        newly = wait_for_ends(running, deadline - time.monotonic())
        running = [rank for rank in running if rank not in newly]
        ended = ended + [rank for rank in newly if not rank.ended_cleanly]
    first = min(ended, key=_order)
    stopped = [rank for rank in running if rank.stopped]
    if stopped and _order(first) == _LOST_ANOTHER:
        return Failure(stopped[0].number, "was stopped, and the others gave up", stopped[0].heartbeat.read())
    return Failure(first.number, _cause(first), first.heartbeat.read(), first.report)


_KILLED, _FAILED, _LOST_ANOTHER = range(3)


def _order(rank: Rank) -> int:
    """Sort key: the lower, the nearer to the cause."""
    if rank.killed:
        return _KILLED
    return _LOST_ANOTHER if rank.report is not None and rank.report.by_peer else _FAILED


def _cause(rank: Rank) -> str:
    if rank.killed:
        name = signal.Signals(rank.end.si_status).name
        return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
    if rank.report is None:
        return f"ended with exit code {rank.end.si_status}"
    return f"failed with {rank.report.kind}: {rank.report.text}"


def diagnose_hang(silent: dict[Rank, float], running: Sequence[Rank]) -> Failure:
    """Of silent ranks (rank -> seconds), the one that the others wait for; all running ranks write their stacks."""
    stopped = [rank for rank in silent if rank.stopped]
    culprit = max(stopped or silent, key=lambda rank: silent[rank])
    what = "was stopped, and silent" if stopped else "was silent"
    failure = Failure(culprit.number, f"{what} for {silent[culprit]:.1f} s", culprit.heartbeat.read())
    for rank in running:
        rank.send(signal.SIGUSR2)
        rank.send(signal.SIGCONT)  # a stopped process writes nothing
    await_stacks(running)
    return failure


def await_stacks(ranks: Sequence[Rank]) -> None:
    """Wait until every rank has written its stacks, frame by frame, and none has written more for QUIET_SECONDS."""
    deadline, seen, since = time.monotonic() + DUMP_SECONDS, [""], 0.0
    while (now := time.monotonic()) < deadline:
        if (stacks := [rank.stacks for rank in ranks]) != seen:
            seen, since = stacks, now
        elif all(stacks) and now - since > QUIET_SECONDS:
            return
        time.sleep(0.02)


def keep_evidence(run: RunDir, attempt: int, ranks: Sequence[Rank]) -> None:
    """Write stacks and tracebacks into `incidents/ATTEMPT/rank-N.txt`; a full disk must not stop a restart."""
    folder = run.incidents / str(attempt)
    for rank in ranks:
        if text := rank.evidence:
            with contextlib.suppress(OSError, StorageError):
                run.incidents.mkdir(exist_ok=True)  # without parents: a run that was moved is not made anew
                folder.mkdir(exist_ok=True)
                write_atomic(folder / f"rank-{rank.number}.txt", text)
