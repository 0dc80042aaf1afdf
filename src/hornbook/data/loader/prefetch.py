"""One background thread that makes the next global batch while the present one is computed."""

import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_THREAD = "hornbook-prefetch"


class Prefetcher(Generic[Key, Value]):
    """Calls `make(key)` ahead of time; `make` is a pure function, so a wrong guess costs time only.

    The thread knows `make` but not the prefetcher, so it ends when the prefetcher is dropped. It is joined before
    the interpreter goes away: a thread that comes back from compiled code into a dying interpreter aborts the process.
    """

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._ahead: tuple[Key, Future[Value]] | None = None
        self._executor: ThreadPoolExecutor | None = None

    def get(self, key: Key, following: Key) -> Value:
        """Value of `key`; that of `following` is started. An error of `make` is raised here, for its own key."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == key:
            value = ahead[1].result()
        else:
            if ahead is not None:
                ahead[1].cancel()
            value = self._make(key)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, _THREAD)
            weakref.finalize(self, _shut_down, self._executor)
        self._ahead = (following, self._executor.submit(self._make, following))
        return value

    def close(self) -> None:
        """End the thread; a value that is being made is finished first and dropped. `get` starts it again."""
        if self._executor is not None:
            _shut_down(self._executor)
        self._ahead = self._executor = None


def _shut_down(executor: ThreadPoolExecutor) -> None:
    own = threading.current_thread().name.startswith(_THREAD)  # where the thread itself drops the prefetcher
    executor.shutdown(wait=not own, cancel_futures=True)
