"""How often a run fails: its mean time between failures, by what is on record of it in the ledger.

`guard.mtbf` is what was known before the run: one failure in so many hours. What the run trained and how often it died
is added to that. A death is a restart of ranks, an error, or an attempt with no end on record: a stop is none, nor is a
pause of the guard.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

_BEGINS = ("start", "resume")
_ENDS = ("stop", "finish", "pause", "fail", "restart")
_FAILS = ("fail", "restart")


def expected_mtbf(prior: float, hours: float, failures: int) -> float:
    """Hours between failures of a run that trained `hours` and failed so often; `prior`: those expected before it."""
    return (prior + hours) / (1 + failures)


@dataclass(frozen=True)
class Uptime:
    """What a run has trained, and how often it failed, up to a record of its ledger."""

    seconds: float = 0.0
    failures: int = 0
    trains: bool = False
    """Whether an attempt has begun that has no end yet."""
    newest: float = 0.0
    """When the newest record of that attempt was written, in seconds since 1970."""

    def after(self, record: Mapping[str, Any]) -> Self:
        """The same after one more record."""
        kind, at = record.get("kind"), record.get("time", self.newest)
        if kind in _BEGINS:  # an attempt that still trains was killed
            return replace(self, failures=self.failures + self.trains, trains=True, newest=at)
        if not self.trains:  # ranks may die again before they train; an error may follow an end that is counted
            return replace(self, failures=self.failures + (kind == "restart"))
        failures = self.failures + (kind in _FAILS)
        return replace(self, seconds=self._until(at), failures=failures, trains=kind not in _ENDS, newest=at)

    def hours(self, now: float) -> float:
        """Hours of training until `now`, in seconds since 1970."""
        return (self._until(now) if self.trains else self.seconds) / 3600

    def _until(self, at: float) -> float:
        return self.seconds + max(at - self.newest, 0.0)
