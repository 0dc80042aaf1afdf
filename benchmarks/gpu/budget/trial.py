"""What all contenders of a fixed budget share: the budget, and figures that are written as they are known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECONDS, DRY_SECONDS = 300.0, 1.0


@dataclass(frozen=True)
class Budget:
    """Time for training steps, after a trial has compiled."""

    seconds: float
    dry: bool
    """Tiny sizes on a CPU: the figures mean nothing."""


class Figures:
    """Figures of a contender; those of a trial are kept for the call that goes on where this one was cut."""

    def __init__(self, known: dict[str, Any], write: Callable[[dict[str, Any]], None]) -> None:
        self.known = dict(known)
        self._write = write

    def add(self, **found: Any) -> None:
        """Write some more."""
        self.known |= found
        self._write(self.known)
