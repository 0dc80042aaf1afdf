"""Heartbeats: the phase and position of every rank, in memory that it shares with its supervisor.

A rank packs a few numbers into its slot when it enters a phase: no system call, no lock. The supervisor reads at any
time; while the sequence number of a slot stands still, its rank has entered no phase.
"""

import mmap
import struct
import time
from dataclasses import dataclass

from hornbook.run.ledger import At, Position

PHASES = ("setup", "data", "forward_backward", "clip", "optimizer", "observe", "evaluate", "sample", "save", "end")
BATCH_PHASES = ("data", "forward_backward")
"""Phases whose time grows with the batch."""
SLOT_BYTES = 64
READS = 10_000
"""Reads before a half-written slot is given up: milliseconds for an interrupted writer to finish."""
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
    """Longest time in nanoseconds that this rank spent, or will spend, in this phase; 0: never entered before."""


class Heartbeat:
    """The heartbeat of one rank; without shared memory only this process can read it."""

    def __init__(self, memory: mmap.mmap | bytearray | None = None, rank: int = 0) -> None:
        self.rank = rank
        self._memory = bytearray(SLOT_BYTES * (rank + 1)) if memory is None else memory
        self._offset = SLOT_BYTES * rank
        self.begin()

    def begin(self) -> None:
        """Forget all phases so far: what the rank did until now was to wait for work."""
        self._slowest, self._newest = [0] * len(PHASES), [0] * len(PHASES)
        self._sequence = self._phase = 0
        self._entered = time.monotonic_ns()
        self._write(At())

    @property
    def slowest_seconds(self) -> float:
        """Longest time that a phase took so far."""
        return max(self._slowest) / 1e9

    def enter(self, phase: str, at: Position) -> None:
        """Begin a phase at a position of the run; the phase before ends."""
        now = time.monotonic_ns()
        if self._sequence:  # before the first call there was no phase, only the start of the process
            self._newest[self._phase] = now - self._entered
            self._slowest[self._phase] = max(self._slowest[self._phase], now - self._entered)
        self._phase, self._entered = PHASES.index(phase), now
        self._sequence += 1
        self._write(at)

    def expect_growth(self, growth: float) -> None:
        """Expect BATCH_PHASES to last `growth` times as long: the next batch is that much larger than the last."""
        for phase in map(PHASES.index, BATCH_PHASES):
            self._slowest[phase] = max(self._slowest[phase], int(self._newest[phase] * growth))

    def _write(self, at: Position) -> None:
        first = last = self._sequence  # the reader sees two numbers while a write is half done
        where = (self._phase, at.step, at.tokens, self._slowest[self._phase])
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
