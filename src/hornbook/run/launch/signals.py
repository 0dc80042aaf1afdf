"""Signals that ask a run to stop: the step in progress is finished, the state is saved, the exit code is 75.

The first SIGINT is answered at once, for the step may take long.
SIGTERM (schedulers), SIGHUP (the terminal has gone), SIGUSR1 (Slurm's warning before the end of a job) and the first
SIGINT only set a flag, so a signal inside a save cannot hurt it. A second SIGINT raises KeyboardInterrupt: leave at
once (exit code 130). Before there is a run to save, `leave_early` ends the process with code 75 too. SIGHUP stays
ignored where it was (nohup).
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

from hornbook.errors import Exit

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


STOPPING = "stopping after this step and a save; Ctrl-C again to stop now"


def leave_early() -> None:
    """From here on end with exit code 75 on a stop signal, until `StopSignals` takes them: imports take seconds.

    SIGINT stays what it is. For the main thread of a process that does nothing else.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGINT and (number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN):
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    text = f"ended by {signal.Signals(number).name} while no step was made: run the same command again\n"
    text = f"\r\x1b[J\x1b[?25h{text}" if os.isatty(2) else text  # a bar may be there, which hides the cursor
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(Exit.RESUMABLE)  # nothing is open yet that would be left half done


class StopSignals:
    """Context in which the stop signals are caught; the previous handlers come back after it."""

    def __init__(self, *, announces: bool = True) -> None:
        self.announces = announces
        """Whether the first SIGINT is answered on stderr: not where a live panel or another process does it."""
        self.received: str | None = None
        """Name of the first stop signal, once there was one."""
        self.pass_on: Callable[[int], None] | None = None
        """Called with every stop signal, in the handler: for other processes that should stop too."""
        self.patient = False
        """A second SIGINT means no more than the first: in a rank, which its supervisor ends if it should."""
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _catch(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and self.received == "SIGINT" and not self.patient:
            raise KeyboardInterrupt
        if number == signal.SIGINT and self.received != "SIGINT" and self.announces:
            _write_stopping()
        self.received = self.received or signal.Signals(number).name
        if number == signal.SIGINT:
            self.received = "SIGINT"
        if self.pass_on is not None:
            self.pass_on(number)


def _write_stopping() -> None:
    """Straight to the descriptor: whoever holds the lock of `sys.stderr` may be what the signal interrupted."""
    with contextlib.suppress(OSError):
        start = "\n" if os.isatty(2) else ""  # behind the ^C that the terminal shows
        os.write(2, f"{start}{STOPPING}\n".encode())
