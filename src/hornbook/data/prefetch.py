"""One background thread that makes the next global batch while the present one is computed."""

import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Prefetcher(Generic[Key, Value]):
    """Calls `make(key)` ahead of time; `make` is a pure function, so a wrong guess costs time only."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._requests: queue.SimpleQueue[tuple[Key, Future[Value]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ahead: tuple[Key, Future[Value]] | None = None

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

    def _submit(self, key: Key) -> "Future[Value]":
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hornbook-prefetch", daemon=True)
            self._thread.start()
        future: Future[Value] = Future()
        self._requests.put((key, future))
        return future

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            key, future = request
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._make(key))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that asked
                future.set_exception(error)
            del key, future, request

    def close(self) -> None:
        """Stop the thread; a value that is being made is finished first and dropped."""
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None
