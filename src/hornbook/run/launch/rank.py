"""One rank of a run: a fork of the supervisor, what it shares with it, and how it ends.

It dies with its supervisor, and with it whatever it started: it leads a process group of its own. What it has to say
about its end (an error, its stacks) lies in memory files, so that nothing has to be cleaned up on any disk.
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
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NoReturn

from hornbook.errors import Exit, HornbookError, RankLostError, StorageError
from hornbook.run.launch.pulse import Pulse
from hornbook.run.launch.signals import STOP_SIGNALS

KILL_SECONDS = 30.0
"""Time for a killed process to end; only one that waits in the kernel for a device takes longer."""
_PR_SET_PDEATHSIG = 1
_PEERS_FAULT = re.compile(
    r"(?i)closed by peer|reset by peer|broken pipe|connection refused|connection was likely closed|timed out|timeout"
    r"|gloo|nccl"
)
"""Texts of a collective that failed because another rank has gone."""


@dataclass(frozen=True)
class Report:
    """The error that ended a rank."""

    kind: str
    """Name of its class."""
    text: str
    traceback: str
    ours: bool
    """It is a HornbookError: trying again would not help."""
    by_peer: bool
    """It says that another rank went away."""

    @classmethod
    def of(cls, error: BaseException) -> "Report":
        """What is to be said of an error."""
        first = list(_chain(error))[-1]
        failed = isinstance(first, RuntimeError) and bool(_PEERS_FAULT.search(str(first)))
        by_peer = failed or isinstance(error, RankLostError)
        whole = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), whole, isinstance(error, HornbookError), by_peer)


class Rank:
    """One rank as its supervisor sees it."""

    def __init__(self, pulse: Pulse, pid: int, stacks: int, report: int) -> None:
        self.number, self.pulse, self.pid = pulse.rank, pulse, pid
        self.pidfd = os.pidfd_open(pid)
        self._stacks, self._report = stacks, report

    @cached_property
    def end(self) -> os.waitid_result:
        """How the process ended; only once it has (its pidfd is readable). It stays to be reaped."""
        result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return result

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self.end.si_code != os.CLD_EXITED

    @property
    def peaceful(self) -> bool:
        """Whether it left of its own accord: the run is over, or is to stop."""
        return not self.killed and self.end.si_status in (Exit.DONE, Exit.RESUMABLE, Exit.INTERRUPTED)

    @cached_property
    def report(self) -> Report | None:
        """The error that ended it, if it could say so."""
        text = _content(self._report)
        return Report(**json.loads(text)) if text else None

    @property
    def stacks(self) -> str:
        """Stacks of all its threads, where it was asked for them or crashed."""
        return _content(self._stacks)

    @property
    def words(self) -> str:
        """Everything it had to say about its end."""
        return self.stacks + (self.report.traceback if self.report is not None else "")

    @property
    def stopped(self) -> bool:
        """Whether the system keeps it from running: stopped by a signal, or waiting for a device without an end."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "TtD"
        return False

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill it and whatever it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.send(signal.SIGKILL)

    def reap(self) -> None:
        """Take the killed process off the system's list, and forget what it shared. StorageError if it does not end."""
        if not wait_for_ends([self], KILL_SECONDS):
            raise StorageError(
                f"rank {self.number} (process {self.pid}) cannot be killed: it waits for a disk or a network file "
                "system that does not answer; see to that, then start again"
            )
        os.waitpid(self.pid, 0)
        for descriptor in (self.pidfd, self._stacks, self._report):
            os.close(descriptor)


def fork_rank(pulse: Pulse, loop: Callable[[], Exit]) -> Rank:
    """Start a rank that runs `loop` and leaves with its exit code. The stop signals are blocked by the caller."""
    stacks, report = os.memfd_create("stacks"), os.memfd_create("report")
    supervisor = os.getpid()
    sys.stdout.flush()  # else what waits to be written is written by every rank
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _live(loop, supervisor, stacks, report)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # here too: whoever comes first
    return Rank(pulse, pid, stacks, report)


def wait_for_ends(ranks: Sequence[Rank], seconds: float) -> list[Rank]:
    """The ranks that have ended, as soon as one has or the time is over."""
    poll = select.poll()
    for rank in ranks:
        poll.register(rank.pidfd, select.POLLIN)
    ended = {descriptor for descriptor, _ in poll.poll(max(seconds, 0.0) * 1e3)}
    return [rank for rank in ranks if rank.pidfd in ended]


def _live(loop: Callable[[], Exit], supervisor: int, stacks: int, report: int) -> NoReturn:
    """All that a rank does."""
    code = Exit.DEFECT
    try:
        os.setpgid(0, 0)
        die_with(supervisor)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it writes to the terminal from the background
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # which shard was truncated is told by the supervisor
        faulthandler.enable(stacks, all_threads=True)
        faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        code = loop()
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - whatever it is, the supervisor hears of it
        os.write(report, json.dumps(asdict(Report.of(error))).encode(errors="replace"))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent dies, and leave if it has died already. Linux alone can."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(Exit.DEFECT)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from or in the handling of."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _content(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
