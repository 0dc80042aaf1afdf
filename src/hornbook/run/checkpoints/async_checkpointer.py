"""When the loop saves: checkpoints, what the ledger hears of them, and what a full disk does.

A scheduled save is copied in memory and written while training goes on; one is in flight at most, and the next waits
for it, so that checkpoints are of the steps the recipe says, on every rank. A save that someone asked for, and the
last, is waited for. A scheduled save that fails is noted, and the loop waits for the next one; older checkpoints are
untouched. The second failure in a row, or one at the end or on a stop, ends the run with exit code 7.

Whoever waits for a save beats, so the supervisor sees no hang in it. A save has a deadline of its own instead: some
times what the slowest took so far, or what a slow disk would. It ends the run at once, since a thread of it may write
for ever: with exit code 75 if another rank did not do its part, else with 7.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hornbook.errors import StorageError
from hornbook.parallel.world import World
from hornbook.run.checkpoints.background import Background
from hornbook.run.checkpoints.checkpoint import Checkpoints
from hornbook.run.checkpoints.exchange import Exchange
from hornbook.run.checkpoints.snapshot import Buffers, Snapshot, take_snapshot
from hornbook.run.job import Job
from hornbook.run.ledger import Ledger, Position
from hornbook.run.observe.observers import Observers
from hornbook.run.start import bound
from hornbook.run.state import State

WAIT_SECONDS = 0.05
LEAST_SECONDS = 300.0
"""No save that takes less is given up."""
SLOW_DISK = 50e6
"""Bytes per second of a disk that is taken for the slowest so far before the first save."""
PATIENCE = 5
"""Times the slowest save so far that one may take."""
GRACE_SECONDS = 0.5
"""For a save that is given up to say which rank it waits for."""


@dataclass
class _Save:
    """One save in flight."""

    snapshot: Snapshot
    final: bool
    started: float
    """Seconds of the monotonic clock, like `durable`."""
    written: Background[tuple[Path, float]]
    """The checkpoint, and when it was durable."""
    held_seconds: float
    """For which the loop did nothing else."""
    metrics: dict[str, Any]
    """What metrics.jsonl held when it began."""


class Saves:
    """Commits checkpoints and says so."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        ledger: Ledger,
        observers: Observers,
        *,
        background: bool,
        waiting: Callable[[Position], None],
    ) -> None:
        """`background`: write scheduled saves while training goes on. `waiting` is called again and again in a wait."""
        self._checkpoints, self._ledger, self._observers = checkpoints, ledger, observers
        self._background, self._waiting = background, waiting
        self._buffers: Buffers | None = None
        self._flying: _Save | None = None
        self._saved_step: int | None = None
        """The newest that is on disk."""
        self._slowest = 0.0
        """Seconds of the save that took longest, or would on a slow disk."""
        self._failures = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._flying is None or kind is KeyboardInterrupt:
            return
        self._checkpoints.leave()  # other ranks may have gone, but what this one can finish, it does
        self._wait(self._flying, self._flying.snapshot)

    def restore(self, state: State) -> Path | None:
        """Read the newest checkpoint that verifies into the state; None if there is none."""
        folder = self._checkpoints.restore(state)
        if folder is not None:
            self._saved_step = state.step
        if self._background:
            self._buffers = Buffers(state.engine.world.device)
            take_snapshot(state, self._buffers)  # the memory is taken here, not in the first save
        return folder

    def save(self, state: State, *, final: bool = False) -> None:
        """Return when this step is on disk; StorageError if it cannot be written."""
        self._settle(state)
        if self._saved_step != state.step:
            self._begin(state, None, final=final)
            self._end(state)

    def try_save(self, state: State) -> None:
        """A scheduled save: it is begun, and the first failure is noted and the run goes on."""
        self._settle(state)
        if self._saved_step == state.step:
            return
        buffers = None if self._failures else self._buffers
        self._begin(state, buffers)
        if buffers is None:
            self._settle(state)

    def poll(self, state: State) -> None:
        """Between steps: take note of a save that is on disk by now."""
        if self._flying is not None and self._flying.written.done:
            self._settle(state)

    def _begin(self, state: State, buffers: Buffers | None, *, final: bool = False) -> None:
        """Copy the state, or without buffers let it stand still, and have it written."""
        started = time.monotonic()
        self._slowest = self._slowest or num_bytes(state) / SLOW_DISK
        self._observers.metrics.sync()  # a checkpoint is never newer than the record of its steps
        snapshot, score = take_snapshot(state, buffers), self._observers.score(state.step)
        metrics, ledger = self._observers.metrics.extent, self._ledger.ends

        def write() -> tuple[Path, float]:
            return self._checkpoints.save(snapshot, final=final, score=score, ledger=ledger), time.monotonic()

        written = Background(write, gives_way=buffers is not None)
        self._flying = _Save(snapshot, final, started, written, time.monotonic() - started, metrics)

    def _settle(self, state: State) -> None:
        """Have nothing in flight; the first failure is noted, a second in a row is raised."""
        at = self._flying.snapshot if self._flying is not None else state
        self._await(state)
        try:
            self._end(state)
        except StorageError as error:
            self._failures += 1
            if self._failures > 1:
                raise
            self._ledger.note("warning", at, text=f"the save failed: {error}")
            for tell in self._observers.notes:
                tell(f"could not save, older checkpoints are untouched, training goes on: {error}")

    def _end(self, state: State) -> None:
        """Wait for what is in flight, and say that it is saved; StorageError if it is not."""
        self._await(state)
        if self._flying is None:
            return
        save, self._flying = self._flying, None
        folder, durable = save.written.result()
        self._saved_step, self._failures = save.snapshot.step, 0
        seconds = {"seconds": durable - save.started, "held_seconds": save.held_seconds}
        self._slowest = max(self._slowest, seconds["seconds"])
        fields = {"manifest": self._checkpoints.digest, "metrics": save.metrics}
        self._ledger.note("save", save.snapshot, checkpoint=folder.name, final=save.final, **fields, **seconds)
        self.pass_on_notes(state)
        for tell in self._observers.notes:
            tell(f"saved {folder.name}")

    def _await(self, state: State) -> None:
        """Wait until nothing is being written; RankLostError or StorageError if that takes too long."""
        save, begun = self._flying, time.monotonic()
        if save is None:
            return
        ended = self._wait(save, state)
        save.held_seconds += time.monotonic() - begun
        if ended:
            return
        self._flying = None
        self._checkpoints.leave()
        if save.written.wait(GRACE_SECONDS):
            save.written.result()
        raise StorageError(
            f"the save of step {save.snapshot.step:,} was given up after {self._limit_seconds:.0f} s: the disk does "
            "not answer, or far too slowly. Older checkpoints are untouched: see to it, then `hornbook resume` goes on"
        )

    def _wait(self, save: _Save, at: Position) -> bool:
        """Whether a save has ended before its deadline. Time in which this process could not run does not count."""
        for _ in range(math.ceil(self._limit_seconds / WAIT_SECONDS)):
            if save.written.wait(WAIT_SECONDS):
                return True
            self._waiting(at)
        return False

    @property
    def _limit_seconds(self) -> float:
        """For which a save may be waited for."""
        return max(LEAST_SECONDS, PATIENCE * self._slowest)

    def pass_on_notes(self, state: State) -> None:
        """Write what happened to checkpoints (damage, litter, removals) into the ledger."""
        for note in self._checkpoints.take_notes():
            self._ledger.note(note.kind, state, path=note.path, text=note.text)
            for tell in self._observers.notes:
                tell(f"{note.path}: {note.text}")


def num_bytes(state: State) -> int:
    """About what a checkpoint of all ranks holds: weights and moments in float32."""
    return 4 * (state.engine.num_parameters + sum(math.prod(shape) for shape in state.moment_shapes().values()))


def open_saves(job: Job, world: World, observers: Observers) -> Saves:
    """The saves of this rank."""
    exchange = Exchange(world.store, world.rank, world.size)
    why_foreign = functools.partial(bound.why_foreign, job.run, job.ledger.past)
    checkpoints = Checkpoints(job.run.checkpoints, job.recipe.checkpoint, exchange, why_foreign)
    background = job.recipe.checkpoint.background and job.recipe.checkpoint.every > 0
    return Saves(
        checkpoints,
        job.ledger,
        observers,
        background=background,
        waiting=lambda at: job.pulse.enter("save", at),
    )
