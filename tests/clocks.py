"""Delays that take no time: clocks are put forward by more than a step takes on however busy a machine."""

import time
from collections.abc import Callable
from typing import Any

import pytest

DELAY = 1000.0
"""Seconds."""


def delay(owner: type, name: str, monkeypatch: pytest.MonkeyPatch, first: int = 1) -> None:
    """Each call of a method takes `DELAY`, from the `first` on, by `time.perf_counter` and `perf_counter_ns`."""
    function: Callable[..., Any] = getattr(owner, name)
    seconds, nanoseconds, calls = time.perf_counter, time.perf_counter_ns, 0

    def late(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        return function(*arguments, **more)

    def delays() -> int:
        return max(calls + 1 - first, 0)

    monkeypatch.setattr(owner, name, late)
    monkeypatch.setattr(time, "perf_counter", lambda: seconds() + delays() * DELAY)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: nanoseconds() + delays() * int(DELAY * 1e9))
