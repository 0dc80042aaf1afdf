"""One background thread that makes the next global batch while the present one is computed."""

import queue
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_Requests = queue.SimpleQueue[tuple[Key, Future[Value]] | None]


class Prefetcher(Generic[Key, Value]):
    """Calls `make(key)` ahead of time; `make` is a pure function, so a wrong guess costs time only.

    The thread knows `make` but not the prefetcher, so it ends when the prefetcher is dropped. It is joined before
    the interpreter goes away: a thread that comes back from compiled code into a dying interpreter aborts the process.
    """

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._requests: _Requests[Key, Value] = queue.SimpleQueue()
        self._ahead: tuple[Key, Future[Value]] | None = None
        self._stop: weakref.finalize | None = None

    def get(self, key: Key, following: Key) -> Value:
        """Value of `key`, then begin with that of `following`. An error of `make` is raised here, for its own key."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == key:
            value = ahead[1].result()
        else:
            if ahead is not None:
                ahead[1].cancel()
            value = self._make(key)
        self._ahead = (following, self._submit(following))
        return value

    def _submit(self, key: Key) -> Future[Value]:
        if self._stop is None:
            thread = threading.Thread(
                target=_work, args=(self._make, self._requests), name="hornbook-prefetch", daemon=True
            )
            self._stop = weakref.finalize(self, _end, self._requests, thread)
            thread.start()
        future: Future[Value] = Future()
        self._requests.put((key, future))
        return future

    def close(self) -> None:
        """End the thread; a value that is being made is finished first and dropped. `get` starts it again."""
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None
        if self._stop is not None:
            self._stop()
            self._stop = None


def _work(make: Callable[[Key], Value], requests: _Requests[Key, Value]) -> None:
    while (request := requests.get()) is not None:
        key, future = request
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(make(key))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
                future.set_exception(error)
        del key, future, request


def _end(requests: _Requests[Key, Value], thread: threading.Thread) -> None:
    requests.put(None)
    if thread is not threading.current_thread():
        thread.join()
