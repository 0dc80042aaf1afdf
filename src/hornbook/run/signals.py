"""Signals that ask a run to stop: the step in progress is finished, the state is saved, the exit code is 75.

SIGTERM (schedulers), SIGUSR1 (Slurm's warning before the end of a job) and the first SIGINT only set a flag, so
a signal inside a save cannot hurt it. A second SIGINT raises KeyboardInterrupt: leave at once (exit code 130).
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopSignals:
    """Context in which the stop signals are caught; the previous handlers come back after it."""

    def __init__(self) -> None:
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
                self._previous[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _catch(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and self.received == "SIGINT" and not self.patient:
            raise KeyboardInterrupt
        self.received = self.received or signal.Signals(number).name
        if number == signal.SIGINT:
            self.received = "SIGINT"
        if self.pass_on is not None:
            self.pass_on(number)
