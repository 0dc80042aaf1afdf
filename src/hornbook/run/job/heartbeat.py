"""Heartbeats: phase and position of every rank, in memory that it shares with its supervisor; when silence is a hang.

A rank packs a few numbers into its slot when it enters a phase: no system call, no lock. The supervisor reads at any
time; while the sequence number of a slot stands still, its rank has entered no phase.
"""

import mmap
import struct
import time
from dataclasses import dataclass

from hornbook.run.ledger.ledger import At, Position

PHASES = ("setup", "data", "forward_backward", "clip", "optimizer", "observe", "evaluate", "sample", "save", "end")
BATCH_PHASES = ("data", "forward_backward")
"""Phases whose time grows with the batch."""
SLOT_BYTES = 64
RECENT = 1_000
"""Times through a phase, of which the longest stands for the 99.9th percentile of its time: what took longer before the
last one or two thousands, such as a compilation, is forgotten."""
READS = 10_000
"""Reads before a half-written slot is given up: milliseconds for an interrupted writer to finish."""
PERIOD = 0.25
"""Seconds between two looks at the heartbeats; the end of a rank is seen at once."""
MIN_SILENCE, MIN_FIRST_SILENCE = 8.75, 300.0
"""Shortest silence in seconds that counts as a hang: in general, and in a phase that the rank enters the first time.
The first leaves time for two looks (`PERIOD`) and the stacks: within 10 s of the last sign of life all is known."""
_SLOT = struct.Struct("=6Q")


@dataclass(frozen=True)
class RankStatus:
    """The content of a slot at one moment."""

    sequence: int
    """Grows with every phase that is entered."""
    phase: str
    step: int
    tokens: int
    slowest: int
    """Longest time in nanoseconds that this rank spent lately (`RECENT`), or will spend, in the phase; 0: not known."""


class Heartbeat:
    """The heartbeat of one rank; without shared memory only this process can read it."""

    def __init__(self, memory: mmap.mmap | bytearray | None = None, rank: int = 0) -> None:
        self.rank = rank
        self._memory = bytearray(SLOT_BYTES * (rank + 1)) if memory is None else memory
        self._offset = SLOT_BYTES * rank
        self.begin()

    def begin(self) -> None:
        """Forget all phases so far: what the rank did until now was to wait for work."""
        self._slowest, self._before, self._newest, self._entries = ([0] * len(PHASES) for _ in range(4))
        self._longest = self._sequence = self._phase = 0
        self._entered = time.monotonic_ns()
        self._write(At())

    @property
    def slowest_seconds(self) -> float:
        """Longest time that a phase took so far."""
        return max(self._longest, *self._slowest) / 1e9

    def enter(self, phase: str, at: Position) -> None:
        """Begin a phase at a position of the run; the phase before ends."""
        now = time.monotonic_ns()
        if self._sequence:  # before the first call there was no phase, only the start of the process
            self._measure(now - self._entered)
        self._phase, self._entered = PHASES.index(phase), now
        self._sequence += 1
        self._write(at)

    def _measure(self, nanoseconds: int) -> None:
        """Take in how long the phase took that ends."""
        phase = self._phase
        self._newest[phase] = nanoseconds
        self._longest = max(self._longest, nanoseconds)
        self._slowest[phase] = max(self._slowest[phase], nanoseconds)
        self._entries[phase] += 1
        if self._entries[phase] == RECENT:
            self._before[phase], self._slowest[phase], self._entries[phase] = self._slowest[phase], 0, 0

    def expect_change(self) -> None:
        """Expect each phase to take longer than ever, once: kernels may be compiled anew for what comes."""
        self._slowest, self._before, self._entries = ([0] * len(PHASES) for _ in range(3))

    def expect_growth(self, growth: float) -> None:
        """Expect BATCH_PHASES to last `growth` times as long: the next batch is that much larger than the last."""
        for phase in map(PHASES.index, BATCH_PHASES):
            self._slowest[phase] = max(self._slowest[phase], int(self._newest[phase] * growth))

    def _write(self, at: Position) -> None:
        first = last = self._sequence  # the reader sees two numbers while a write is half done
        slowest = max(self._slowest[self._phase], self._before[self._phase])
        where = (self._phase, at.step, at.tokens, slowest)
        _SLOT.pack_into(self._memory, self._offset, first, *where, last)

    def read(self) -> RankStatus:
        """The newest content of the slot. Waits for a writer within a write, but not for one that died there."""
        values = _SLOT.unpack_from(self._memory, self._offset)
        for _ in range(READS):
            before, values = values, _SLOT.unpack_from(self._memory, self._offset)
            if values == before and values[0] == values[-1]:
                break
        sequence, phase, step, tokens, slowest, _ = values
        return RankStatus(sequence, PHASES[phase], step, tokens, slowest)


def shared_heartbeats(ranks: int) -> list[Heartbeat]:
    """One heartbeat per rank, in memory that this process shares with its future forks."""
    memory = mmap.mmap(-1, SLOT_BYTES * ranks)
    return [Heartbeat(memory, rank) for rank in range(ranks)]


class Watchdog:
    """Measures how long the heartbeat of a rank has stood still, counting only time in which this process ran."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._sequence = -1
        self._first: int | None = None
        self._looked = time.monotonic()
        self.seconds = 0.0
        self.made_step = False
        """Whether the rank has made a step since it began to train."""

    def expired(self, hang_seconds: float) -> bool:
        """Read the heartbeat; whether its silence is a hang (`guard.hang_seconds`; 0: judged by earlier phases)."""
        now, status = time.monotonic(), self._heartbeat.read()
        if status.phase != "setup":
            self._first = status.step if self._first is None else self._first
            self.made_step = status.step > self._first
        # If this process was kept from running too (a busy or frozen machine), that is not the rank's silence.
        self.seconds = self.seconds + min(now - self._looked, 2 * PERIOD) if status.sequence == self._sequence else 0.0
        self._looked, self._sequence = now, status.sequence
        if not status.slowest:
            return self.seconds > max(hang_seconds, MIN_FIRST_SILENCE)
        return self.seconds > (hang_seconds or max(MIN_SILENCE, 5 * status.slowest / 1e9))
