"""A time at which a run has to be over: `--until`, or the end of its Slurm job.

The run stops before a step after which there might be no time left to save. Steps and saves are those of rank 0, which
alone decides; a clock decides nothing else, so a run that was stopped goes on with the same bits.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime

from hornbook.errors import UsageError

SLURM_END = "SLURM_JOB_END_TIME"
"""Environment variable of a Slurm job: the end of its time limit, in seconds since 1970."""
FORMS = "write a time from now (90s, 30m, 2h, 1h30m, 3d), or one of the clock (2026-11-27T06:00, or with +02:00)"
SAVES = 1.5
"""Multiple of the slowest save so far that is left for the last one."""
FLOOR_SECONDS = 5.0
"""Least time of a save where none has been measured."""
RECENT = 1_000
"""Newest steps of which the longest is what a step may take."""
_SPAN = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?")
_UNITS = (86400, 3600, 60, 1)


def read_deadline(text: str | None, environ: Mapping[str, str], now: float) -> float | None:
    """The deadline that `--until` names, or else that of the Slurm job, in seconds since 1970; None: there is none.

    Raises UsageError for one that is no time, or is past.
    """
    if text is not None:
        until, given = _time_of(text, now), f"--until {text}"
    elif (found := environ.get(SLURM_END, "")) not in ("", "0"):
        until, given = float(found) if re.fullmatch(r"\d{1,11}", found) else None, f"{SLURM_END}={found}"
    else:
        return None
    remedy = FORMS if text is not None else f"unset {SLURM_END}, or give --until: {FORMS}"
    if until is None:
        raise UsageError(f"{given} is no time: {remedy}")
    if until <= now:
        raise UsageError(f"{given} is past: {remedy}")
    return until


def _time_of(text: str, now: float) -> float | None:
    if text and (found := _SPAN.fullmatch(text)):
        return now + sum(int(count or 0) * unit for count, unit in zip(found.groups(), _UNITS, strict=True))
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


class Deadline:
    """Whether a run has to stop now. All times are in seconds."""

    def __init__(
        self,
        until: float | None,
        clock: Callable[[], float] | None = None,
        steady: Callable[[], float] | None = None,
    ) -> None:
        """`until`: since 1970, None: never; `clock`: gives that time; `steady`: a clock that nobody sets."""
        self.until = until
        self._clock, self._steady = clock or time.time, steady or time.monotonic
        self._steps = deque[float](maxlen=RECENT)
        self._before: float | None = None
        self._first = True
        """Whether the only step so far is the first one, which compiles."""
        self._guess, self._slowest = 0.0, 0.0
        self._saving: float | None = None
        """When the save in flight began."""
        self._passed = False

    def begin_step(self) -> None:
        """Call it before every step: what lies between two calls is the time of a step, its observers and its save."""
        before, self._before = self._before, self._steady()
        if before is None:
            return
        if self._first and self._steps:
            self._first = False
            self._steps.clear()
        self._steps.append(self._before - before)

    def expect_save(self, seconds: float) -> None:
        """Say how long a save takes, where none has been measured."""
        self._guess = seconds

    def begin_save(self) -> None:
        """A save begins; it may go on while steps are made."""
        self._saving = self._steady()

    def end_save(self, seconds: float) -> None:
        """The save has ended well, and took so long."""
        self._saving, self._slowest = None, max(self._slowest, seconds)

    @property
    def longest_step(self) -> float:
        """The longest step lately; 0 before the first has ended."""
        return max(self._steps, default=0.0)

    @property
    def slowest_save(self) -> float:
        """The slowest save so far, or what one may take."""
        return self._slowest or max(self._guess, FLOOR_SECONDS)

    def is_due(self) -> bool:
        """Whether another step would leave too little time to save. Once it is, it stays so."""
        return self._leaves_less_than(self.longest_step)

    def is_near(self) -> bool:
        """The same within a step: whether what takes long, such as an evaluation, should end now."""
        return self._leaves_less_than(0.0)

    def _leaves_less_than(self, step: float) -> bool:
        if self.until is None or self._passed:
            return self._passed
        slowest = self.slowest_save
        in_flight = 0.0 if self._saving is None else max(slowest - (self._steady() - self._saving), 0.0)
        self._passed = self._clock() + step + in_flight + SAVES * slowest >= self.until
        return self._passed

    def describe(self) -> str:
        """For people: when it is, and the time that is kept free before it."""
        kept = f"a step takes up to {self.longest_step:.3g} s, a save up to {self.slowest_save:.3g} s"
        return f"the deadline is {self.clock_time()}; {kept}"

    def clock_time(self) -> str:
        """The deadline as local time; "" where there is none, and seconds since 1970 beyond what a calendar knows."""
        if self.until is None:
            return ""
        try:
            return datetime.fromtimestamp(self.until).strftime("%Y-%m-%d %H:%M:%S")
        except (ValueError, OverflowError, OSError):
            return f"{self.until:.0f}"
