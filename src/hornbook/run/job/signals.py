"""Signals that ask a run to stop: it finishes the step in progress, saves the state, and exits with code 75.

SIGTERM (schedulers), SIGHUP (the terminal has gone), SIGUSR1 (Slurm's warning before the end of a job) and the first
SIGINT only set a flag, so they cannot damage a save. The first SIGINT is also answered at once, since the step may take
long. A second SIGINT raises KeyboardInterrupt: leave at once (exit code 130). A second SIGTERM, a second later or more
(some schedulers send the first to several processes, which pass it on), raises StopNow: give up the save in progress,
leave with code 75, and the newest checkpoint is the state. Before there is a run to save,
`leave_early` ends the process with code 75 too. SIGHUP stays ignored where it was (nohup).
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Self

from hornbook.errors import Exit

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
STOPPING = "stopping after this step and a save; Ctrl-C again to stop now"


SECOND_SECONDS = 1.0
"""Shortest time between two SIGTERM that are not one."""


class StopNow(KeyboardInterrupt):
    """A second SIGTERM: there is no time to save."""

    @staticmethod
    def code_of(interrupt: KeyboardInterrupt) -> Exit:
        """The exit code of a process that an interrupt ended."""
        return Exit.RESUMABLE if isinstance(interrupt, StopNow) else Exit.INTERRUPTED


def leave_early() -> None:
    """Exit with code 75 on a stop signal from now on, until `StopSignals` handles them: imports take seconds.

    SIGINT keeps its handler. Call it in the main thread of a process that does nothing else.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGINT and (number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN):
            signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    text = f"ended by {signal.Signals(number).name} while no step was made: run the same command again\n"
    text = f"\r\x1b[J\x1b[?25h{text}" if os.isatty(2) else text  # a progress bar hides the cursor
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(Exit.RESUMABLE)  # nothing is open yet that could be left unfinished


class StopSignals:
    """Context in which the stop signals are caught; it restores the previous handlers."""

    def __init__(self, *, announces: bool = True) -> None:
        self.announces = announces
        """Whether the first SIGINT is answered on stderr; False where a live panel or another process does it."""
        self.received: str | None = None
        """Name of the first stop signal, or of SIGINT if one came later; None before."""
        self.pass_on: Callable[[int], None] | None = None
        """Called in the handler with every stop signal, to stop other processes too."""
        self.patient = False
        """Whether a second signal is like the first: in a rank, which its supervisor kills if need be."""
        self._previous: dict[int, object] = {}
        self._terminated: float | None = None
        """When the first SIGTERM came, in seconds of the monotonic clock."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _catch(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == "SIGINT" and not self.patient:
            raise KeyboardInterrupt
        if number == signal.SIGTERM and not self.patient:
            now = time.monotonic()
            if self._terminated is not None and now - self._terminated >= SECOND_SECONDS:
                raise StopNow
            self._terminated = self._terminated or now
        if number == signal.SIGINT and self.received != "SIGINT" and self.announces:
            with contextlib.suppress(OSError):
                start = "\n" if os.isatty(2) else ""  # after the ^C that the terminal shows
                # To the descriptor: the interrupted code may hold the lock of `sys.stderr`.
                os.write(2, f"{start}{STOPPING}\n".encode())
        self.received = self.received or signal.Signals(number).name
        if number == signal.SIGINT:
            self.received = "SIGINT"
        if self.pass_on is not None:
            self.pass_on(number)


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Hold stop signals back until the end of the context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
