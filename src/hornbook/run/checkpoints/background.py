"""A call in a thread of its own."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

NICE = 10
"""Added to the niceness of a thread that gives way."""


class Background(Generic[T]):
    """One call; the process may end while it goes on. `gives_way`: other threads of the process go first."""

    def __init__(self, call: Callable[[], T], *, gives_way: bool = False) -> None:
        self._call, self._gives_way = call, gives_way
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, name="checkpoint", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        return self._future.done()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, waiting for that so long at most."""
        return bool(wait([self._future], seconds).done)

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        return self._future.result()

    def _run(self) -> None:
        if self._gives_way and sys.platform == "linux":  # elsewhere a priority is that of the whole process
            with suppress(OSError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
        try:
            self._future.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - `result` raises it again
            self._future.set_exception(error)
