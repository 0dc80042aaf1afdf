"""A process that is killed at a point of our choice, without a process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@contextmanager
def killed_at_rename(number: int) -> Iterator[None]:
    """The block is killed instead of its `number`-th rename (from 1): what it would have made does not appear."""
    real, left = os.replace, number

    def stop(*names: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Killed
        real(*names)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", stop)
        with pytest.raises(Killed):
            yield
