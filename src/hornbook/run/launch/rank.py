"""One rank of a run: a fork of the supervisor, what it shares with it, how it ends, and which of several failed first.

It dies with its supervisor, and its own children die with it: it leads a process group of its own. Its error and its
stacks are written to memory files, so that nothing has to be cleaned up on any disk.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import hornbook.errors
from hornbook.errors import Exit, HornbookError, LostDeviceError, RankLostError, StorageError
from hornbook.files.durable import write_atomic
from hornbook.files.run_directory import RunDir
from hornbook.kernels.device_errors import device_error
from hornbook.run.doctor.stacks import RankStack, parse_stacks
from hornbook.run.job.heartbeat import PERIOD, Heartbeat, RankStatus, Watchdog
from hornbook.run.job.signals import STOP_SIGNALS
from hornbook.run.ledger.ledger import Ledger

KILL_SECONDS = 30.0
"""Longest wait for a killed process to end; only one that waits in the kernel for a device takes longer."""
GRACE_SECONDS = 1.0
"""Wait for the first rank to fail, where the others ended because it was gone."""
DUMP_SECONDS = 3.0
"""Longest wait for hanging ranks to write their stacks."""
QUIET_SECONDS = 0.5
"""Time without a further frame after which stacks count as complete."""
_PR_SET_PDEATHSIG = 1
_LOST_PEER = re.compile(
    r"(?i)closed by peer|reset by peer|broken pipe|connection refused|connection was likely closed|timed out|timeout"
    r"|gloo|nccl"
)
"""Texts of a collective that failed because another rank was gone."""


@dataclass(frozen=True)
class Report:
    """The error that ended a rank."""

    kind: str
    """Name of its class."""
    text: str
    traceback: str
    ours: bool
    """It is a HornbookError: a restart would meet it again."""
    by_peer: bool
    """It failed because another rank went away."""

    @classmethod
    def of(cls, error: BaseException) -> "Report":
        """The report of an error."""
        first = error
        while cause := first.__cause__ or first.__context__:
            first = cause
        failed = isinstance(first, RuntimeError) and bool(_LOST_PEER.search(str(first)))
        by_peer = (failed and device_error(first) is None) or isinstance(error, RankLostError)
        whole = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), whole, isinstance(error, HornbookError), by_peer)


class Rank:
    """One rank as its supervisor sees it."""

    def __init__(self, heartbeat: Heartbeat, pid: int, stacks: int, report: int) -> None:
        self.number, self.heartbeat, self.pid = heartbeat.rank, heartbeat, pid
        self.pidfd, self.memory_kills = os.pidfd_open(pid), memory_kills()
        self._stacks, self._report = stacks, report

    @cached_property
    def end(self) -> os.waitid_result:
        """How the process ended. Valid once it has (its pidfd is readable); the process stays to be reaped."""
        result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return result

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self.end.si_code != os.CLD_EXITED

    @property
    def ended_cleanly(self) -> bool:
        """Whether it left because the run is finished or was asked to stop."""
        return not self.killed and self.end.si_status in (Exit.DONE, Exit.RESUMABLE, Exit.INTERRUPTED)

    @cached_property
    def report(self) -> Report | None:
        """The error that ended it; None where it left no report."""
        text = _content(self._report)
        return Report(**json.loads(text)) if text else None

    @property
    def stacks(self) -> str:
        """Stacks of all its threads, if it was asked for them or crashed; else ""."""
        return _content(self._stacks)

    @property
    def waits_for_others(self) -> bool:
        """Whether its stack stands in a collective."""
        return bool(RankStack(self.number, tuple(parse_stacks(self.stacks))).collective)

    @property
    def stopped(self) -> bool:
        """Whether the system keeps it from running: stopped by a signal, or in an uninterruptible wait for a device."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "TtD"
        return False

    def send(self, number: int) -> None:
        """Send a signal, if it is alive."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill it and its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.send(signal.SIGKILL)

    def reap(self) -> None:
        """Reap the killed process and close its files. StorageError if it does not end."""
        if not wait_for_ends([self], KILL_SECONDS):
            raise StorageError(
                f"rank {self.number} (process {self.pid}) cannot be killed: it waits for a disk or a network file "
                "system that does not answer; see to that, then start again"
            )
        os.waitpid(self.pid, 0)
        for descriptor in (self.pidfd, self._stacks, self._report):
            os.close(descriptor)


def memory_kills() -> int:
    """Processes that the system has killed since it started because memory ran out; 0 where it does not count them."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0


def fork_rank(heartbeat: Heartbeat, loop: Callable[[], Exit]) -> Rank:
    """Fork a rank that runs `loop` and exits with its code. The caller blocks the stop signals."""
    stacks, report = os.memfd_create("stacks"), os.memfd_create("report")
    supervisor = os.getpid()
    sys.stdout.flush()  # else every rank writes what is still buffered
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run_rank(loop, supervisor, stacks, report)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # in parent and child: either may come first
    return Rank(heartbeat, pid, stacks, report)


def wait_for_ends(ranks: Sequence[Rank], seconds: float) -> list[Rank]:
    """The ranks that have ended, as soon as one has or `seconds` have passed."""
    poll = select.poll()
    for rank in ranks:
        poll.register(rank.pidfd, select.POLLIN)
    ended = {descriptor for descriptor, _ in poll.poll(max(seconds, 0.0) * 1e3)}
    return [rank for rank in ranks if rank.pidfd in ended]


def end_ranks(ranks: Sequence[Rank]) -> None:
    """Kill and reap them."""
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.reap()


class Look(NamedTuple):
    """State of some ranks at one moment."""

    running: list[Rank]
    failed: list[Rank]
    silent: dict[Rank, float]
    """Running rank -> seconds of a silence that is a hang."""
    made_step: bool
    """Whether each has made a step since it began to train."""


def look_at(ranks: Sequence[Rank], hang_seconds: float) -> Iterator[Look]:
    """Look at ranks several times a second, at once when one ends, until all have. `hang_seconds`: of `guard`."""
    running, watchdogs = list(ranks), {rank: Watchdog(rank.heartbeat) for rank in ranks}
    while running:
        for rank in wait_for_ends(running, PERIOD):
            running.remove(rank)
        failed = [rank for rank in ranks if rank not in running and not rank.ended_cleanly]
        silent = {rank: watchdogs[rank].seconds for rank in running if watchdogs[rank].expired(hang_seconds)}
        yield Look(running, failed, silent, all(each.made_step for each in watchdogs.values()))


def _run_rank(loop: Callable[[], Exit], supervisor: int, stacks: int, report: int) -> NoReturn:
    """The whole life of a rank."""
    code = Exit.DEFECT
    try:
        os.setpgid(0, 0)
        die_with(supervisor)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it writes to the terminal as a background process
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # the supervisor names the shard that was truncated
        faulthandler.enable(stacks, all_threads=True)
        faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        code = loop()
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - the supervisor reports any error
        os.write(report, json.dumps(asdict(Report.of(error))).encode(errors="replace"))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def die_with(parent: int) -> None:
    """Have the system kill this process when `parent` dies (Linux only); exit if it has died already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(Exit.DEFECT)


def _content(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


@dataclass(frozen=True)
class Failure:
    """The first rank to fail, and how."""

    rank: int
    cause: str
    """The predicate of a sentence about the rank: `was killed by SIGKILL`."""
    status: RankStatus
    """Its last heartbeat."""
    report: Report | None = None
    found: float = field(default_factory=time.time, compare=False)
    """When it was noticed, in seconds since 1970: before the stacks of a hang were written, and before any restart."""

    def __str__(self) -> str:
        return f"rank {self.rank} {self.cause} (step {self.status.step}, {self.status.phase})"

    def fields(self) -> dict[str, Any]:
        """Of the ledger's record of the restart."""
        return {"rank": self.rank, "cause": self.cause, "phase": self.status.phase, "found": self.found}

    @property
    def own_error(self) -> HornbookError | None:
        """The rank's own error, if it is a HornbookError; else None."""
        if self.report is None or not self.report.ours or self.report.by_peer:
            return None
        return getattr(hornbook.errors, self.report.kind, HornbookError)(self.report.text)

    @property
    def lasting_error(self) -> HornbookError | None:
        """`own_error`, where a restart would meet it again: a process that lost its GPU gets another one."""
        return None if isinstance(self.own_error, LostDeviceError) else self.own_error


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
        memory = name == "SIGKILL" and rank.memory_kills < memory_kills()
        return f"was killed by {name}" + (": memory ran out, and the system killed a process" if memory else "")
    if rank.report is None:
        return f"ended with exit code {rank.end.si_status}"
    return f"failed with {rank.report.kind}: {rank.report.text}"


def diagnose_hang(silent: dict[Rank, float], running: Sequence[Rank]) -> Failure:
    """Of silent ranks (rank -> seconds), the one that the others wait for; all running ranks write their stacks.

    It is the one that the system keeps from running, else one that waits in no collective, else the longest silent.
    """
    found, status = time.time(), {rank: rank.heartbeat.read() for rank in silent}
    stopped = [rank for rank in silent if rank.stopped]
    for rank in running:
        rank.send(signal.SIGUSR2)
        rank.send(signal.SIGCONT)  # a stopped process writes nothing
    await_stacks(running)
    culprit = max(stopped or silent, key=lambda rank: (not rank.waits_for_others, silent[rank]))
    what = "was stopped, and silent" if stopped else "was silent"
    return Failure(culprit.number, f"{what} for {silent[culprit]:.1f} s", status[culprit], found=found)


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
        if text := rank.stacks + (rank.report.traceback if rank.report is not None else ""):
            with contextlib.suppress(OSError, StorageError):
                run.incidents.mkdir(exist_ok=True)  # without parents: a run that was moved is not made anew
                folder.mkdir(exist_ok=True)
                write_atomic(folder / f"rank-{rank.number}.txt", text)


def note_hang(run: RunDir, failure: Failure, error: HornbookError) -> None:
    """Record how the run ended: rank 0, which hung or waited, is gone."""
    with contextlib.suppress(HornbookError), Ledger(run) as ledger:
        ledger.attempt = max(ledger.past.attempt, 1)
        ledger.note("fail", failure.status, error=type(error).__name__, text=str(error), found=failure.found)
        if (state := run.read_state()) is not None:
            run.write_state({**state, "status": "failed", "heartbeat": time.time()})
