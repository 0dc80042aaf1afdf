"""The trace: which fault strikes whom at which step; and how each is done, from outside, by signals alone.

A fault strikes when its step is on record for the first time, so every side meets the same faults at the same progress.
"""

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

KINDS = ("kill", "kill", "both", "hang", "slow", "disk", "job")
"""What strikes: SIGKILL of a rank, or of both; SIGSTOP of a rank for ever; a rank that runs half of the time for a
while; the newest checkpoint cut in half and every process of the job killed; the latter alone."""
SLOW_SECONDS, SLICE_SECONDS = 10.0, 0.1


@dataclass(frozen=True)
class Fault:
    """One of the trace."""

    kind: str
    step: int
    rank: int


def trace(steps: int, seed: int) -> list[Fault]:
    """Every kind of `KINDS` in an order drawn by the seed, evenly over the middle nine tenths of the steps."""
    draw = random.Random(seed)
    kinds = draw.sample(KINDS, len(KINDS))
    gap = 0.9 * steps / len(kinds)
    return [
        Fault(kind, round(0.05 * steps + gap * (number + draw.uniform(0.1, 0.9))), draw.randrange(2))
        for number, kind in enumerate(kinds)
    ]


def send(pids: list[int], number: signal.Signals) -> None:
    """A signal to processes, of which some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def slow(pid: int) -> None:
    """Let a process run half of the time, for `SLOW_SECONDS`."""
    until = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < until:
        send([pid], signal.SIGSTOP)
        time.sleep(SLICE_SECONDS)
        send([pid], signal.SIGCONT)
        time.sleep(SLICE_SECONDS)


def cut(path: Path) -> None:
    """The second half of a file is gone."""
    os.truncate(path, path.stat().st_size // 2)
