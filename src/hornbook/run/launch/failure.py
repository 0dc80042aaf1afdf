"""Why an incarnation of ranks ended: which rank was first, what is kept as evidence, and whether to try again."""

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
from hornbook.run.launch.pulse import Beat
from hornbook.run.launch.rank import Rank, Report, wait_for_ends

GRACE_SECONDS = 1.0
"""When ranks end because another went away: so long that one is waited for."""
DUMP_SECONDS = 3.0
"""For silent ranks to write their stacks."""
STILL_SECONDS = 0.5
"""Without a further frame, after which stacks are taken for whole."""


@dataclass(frozen=True)
class Failure:
    """The rank that ended first, and how."""

    rank: int
    cause: str
    """What happened to the rank, as the end of a sentence that begins with it."""
    beat: Beat
    """Where it was."""
    report: Report | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} {self.cause} (step {self.beat.step}, {self.beat.phase})"

    def record(self) -> dict[str, Any]:
        """For the ledger."""
        return {"rank": self.rank, "cause": self.cause, "phase": self.beat.phase}

    @property
    def lasting(self) -> HornbookError | None:
        """The rank's own error, where trying again would not help."""
        if self.report is None or not self.report.ours or self.report.by_peer:
            return None
        return getattr(hornbook.errors, self.report.kind, HornbookError)(self.report.text)


def diagnose(ended: list[Rank], running: Sequence[Rank]) -> Failure:
    """Of ranks that ended badly, the one that did so by itself; those that lost it end a moment later, or before."""
    deadline, running = time.monotonic() + GRACE_SECONDS, list(running)
    while running and all(_order(rank) == _LOST_ANOTHER for rank in ended) and time.monotonic() < deadline:
        newly = wait_for_ends(running, deadline - time.monotonic())
        running = [rank for rank in running if rank not in newly]
        ended = ended + [rank for rank in newly if not rank.peaceful]
    first = min(ended, key=_order)
    stopped = [rank for rank in running if rank.stopped]
    if stopped and _order(first) == _LOST_ANOTHER:
        return Failure(stopped[0].number, "was stopped, and the others gave up", stopped[0].pulse.read())
    return Failure(first.number, _cause(first), first.pulse.read(), first.report)


_KILLED, _FAILED, _LOST_ANOTHER = range(3)


def _order(rank: Rank) -> int:
    """The less, the nearer to the cause."""
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
    """Of ranks that said nothing for so many seconds, the one that the others wait for; all write their stacks."""
    stopped = [rank for rank in silent if rank.stopped]
    culprit = max(stopped or silent, key=lambda rank: silent[rank])
    what = "was stopped, and silent" if stopped else "was silent"
    failure = Failure(culprit.number, f"{what} for {silent[culprit]:.1f} s", culprit.pulse.read())
    for rank in running:
        rank.send(signal.SIGUSR2)
        rank.send(signal.SIGCONT)  # a stopped process writes nothing
    await_stacks(running)
    return failure


def await_stacks(ranks: Sequence[Rank]) -> None:
    """Until every rank has written its stacks, frame by frame, and none has written more for STILL_SECONDS."""
    deadline, seen, since = time.monotonic() + DUMP_SECONDS, [""], 0.0
    while (now := time.monotonic()) < deadline:
        if (stacks := [rank.stacks for rank in ranks]) != seen:
            seen, since = stacks, now
        elif all(stacks) and now - since > STILL_SECONDS:
            return
        time.sleep(0.02)


def keep_evidence(run: RunDir, attempt: int, ranks: Sequence[Rank]) -> None:
    """Write stacks and tracebacks into `incidents/ATTEMPT/rank-N.txt`; a full disk must not stop a restart."""
    folder = run.incidents / str(attempt)
    for rank in ranks:
        if text := rank.words:
            with contextlib.suppress(OSError, StorageError):
                run.incidents.mkdir(exist_ok=True)
                folder.mkdir(exist_ok=True)
                write_atomic(folder / f"rank-{rank.number}.txt", text)
