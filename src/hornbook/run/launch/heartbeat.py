"""Heartbeats: where every rank is, in memory that it shares with its supervisor.

A rank packs a few numbers into its slot when it enters a phase: no system call, no lock. The supervisor looks
whenever it likes; a slot whose sequence number stands still belongs to a rank that does nothing.
"""

import mmap
import struct
import time
from dataclasses import dataclass

from hornbook.run.ledger import At, Position

PHASES = ("setup", "data", "forward_backward", "clip", "optimizer", "observe", "evaluate", "sample", "save", "end")
"""What a rank can be busy with."""
BATCH_PHASES = ("data", "forward_backward")
"""Those that last longer the larger the batch is."""
SLOT_BYTES = 64
READS = 10_000
"""A writer that was interrupted within a beat has some milliseconds to finish it."""
_SLOT = struct.Struct("=8Q")


@dataclass(frozen=True)
class Beat:
    """What a slot said at one moment."""

    incarnation: int
    """Which generation of ranks wrote it, from 0."""
    sequence: int
    """Grows with every beat."""
    phase: str
    step: int
    tokens: int
    entered: int
    """Nanoseconds of the monotonic clock when the phase was entered."""
    slowest: int
    """Longest time in nanoseconds that this rank spent in this phase so far, or must be expected to; 0: in none yet."""

    @property
    def at(self) -> At:
        """The position of the rank."""
        return At(self.step, self.tokens)


class Pulse:
    """The heartbeat of one rank; without shared memory nobody listens."""

    def __init__(self, memory: mmap.mmap | bytearray | None = None, rank: int = 0, incarnation: int = 0) -> None:
        self.rank, self.incarnation = rank, incarnation
        self._memory = bytearray(SLOT_BYTES * (rank + 1)) if memory is None else memory
        self._offset = SLOT_BYTES * rank
        self._slowest, self._newest = [0] * len(PHASES), [0] * len(PHASES)
        self._sequence = self._phase = 0
        self._entered = time.monotonic_ns()
        self._write(At())

    @property
    def slowest_seconds(self) -> float:
        """Longest time that one phase took so far."""
        return max(self._slowest) / 1e9

    def enter(self, phase: str, at: Position) -> None:
        """Say what is done next, and where the run is; the phase before is over."""
        now = time.monotonic_ns()
        if self._sequence:  # before the first call there was no phase, only the time until the rank was there
            self._newest[self._phase] = now - self._entered
            self._slowest[self._phase] = max(self._slowest[self._phase], now - self._entered)
        self._phase, self._entered = PHASES.index(phase), now
        self._sequence += 1
        self._write(at)

    def expect(self, growth: float) -> None:
        """The next batch is `growth` times as large as the last: what computes it may last that much longer."""
        for phase in map(PHASES.index, BATCH_PHASES):
            self._slowest[phase] = max(self._slowest[phase], int(self._newest[phase] * growth))

    def _write(self, at: Position) -> None:
        first = last = self._sequence
        where = (self.incarnation, self._phase, at.step, at.tokens, self._entered, self._slowest[self._phase])
        _SLOT.pack_into(self._memory, self._offset, first, *where, last)

    def read(self) -> Beat:
        """What the rank said last. A beat that is half written is waited for, but one that died in it is not."""
        values = _SLOT.unpack_from(self._memory, self._offset)
        for _ in range(READS):
            before, values = values, _SLOT.unpack_from(self._memory, self._offset)
            if values == before and values[0] == values[-1]:
                break
        sequence, incarnation, phase, step, tokens, entered, slowest, _ = values
        return Beat(incarnation, sequence, PHASES[phase], step, tokens, entered, slowest)


def shared_pulses(ranks: int, incarnation: int) -> list[Pulse]:
    """Heartbeats in memory that this process shares with those it forks from now on."""
    memory = mmap.mmap(-1, SLOT_BYTES * ranks)
    return [Pulse(memory, rank, incarnation) for rank in range(ranks)]
