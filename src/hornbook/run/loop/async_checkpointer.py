"""When the loop saves, what the ledger records of it, and what happens when the disk is full.

A scheduled save is copied in memory and written while training goes on. One save is in flight at most, and the next
waits for it, so that every rank has checkpoints of the steps that the recipe names. A requested save, and the last one,
block the loop. A scheduled save that fails is noted, and the next one blocks the loop; older checkpoints are untouched.
The second failure in a row, or one at the end or on a stop, ends the run with exit code 7.

A wait for a save beats the heart, so the supervisor sees no hang in it. A save has a deadline of its own instead: a
multiple of the slowest save so far, or of what a slow disk would take. A save that misses it ends the run at once,
since its thread may write for ever: with exit code 75 if another rank did not do its part, else with 7.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

from hornbook.errors import StorageError
from hornbook.parallel.world import World
from hornbook.run.checkpoints import bound
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.run.checkpoints.interval import SaveInterval
from hornbook.run.checkpoints.memory_tier import MemoryTier
from hornbook.run.checkpoints.rank_exchange import Exchange
from hornbook.run.checkpoints.snapshot import Buffers, Snapshot, take_snapshot
from hornbook.run.checkpoints.state import State
from hornbook.run.guard.policy import LEAST_BACK, WINDOW, Spans
from hornbook.run.job.job import Job
from hornbook.run.ledger.ledger import Position
from hornbook.run.ledger.step_report import Step, is_due
from hornbook.run.observe.observers import Observers
from hornbook.run.observe.replicas import ReplicaCheck

WAIT_SECONDS = 0.05
MIN_DEADLINE = 300.0
"""Seconds that every save may take."""
SLOW_DISK = 50e6
"""Bytes per second of a slow disk; its time for a save stands for the slowest so far before the first save."""
PATIENCE = 5
"""Multiple of the slowest save so far that a save may take."""
NICE = 10
"""Added to the niceness of the thread that writes."""
GRACE_SECONDS = 0.5
"""Wait for an abandoned save to name the rank it waits for."""

T = TypeVar("T")


def in_background(call: Callable[[], T], *, gives_way: bool = False) -> futures.Future[T]:
    """The future of a call in a daemon thread. `gives_way`: the thread has a lower priority than the others."""
    future: futures.Future[T] = futures.Future()

    def run() -> None:
        if gives_way and sys.platform == "linux":  # elsewhere a priority is that of the whole process
            with contextlib.suppress(OSError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - `result` raises it again
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


@dataclass
class _SaveInFlight:
    """A save that may not be on disk yet."""

    snapshot: Snapshot
    final: bool
    started: float
    """Seconds of the monotonic clock."""
    written: futures.Future[tuple[Path, float]]
    """(the checkpoint, the monotonic time at which it was durable)."""
    held_seconds: float
    """Time for which the loop waited for it."""
    metrics: dict[str, Any]
    """Extent of metrics.jsonl when it began (`Appender.extent`)."""


class Restored(NamedTuple):
    """Where the state of an attempt comes from."""

    name: str
    """For the ledger: the checkpoint's, or `memory`."""
    source: str
    """For people."""


class AsyncCheckpointer:
    """Begins the saves of this rank, waits for them, and records them in the ledger."""

    def __init__(self, job: Job, world: World, observers: Observers) -> None:
        self._ledger, self._control, self._observers = job.ledger, job.control, observers
        self._exchange = Exchange(world.store, world.rank, world.size)
        self._store = CheckpointStore(
            job.run.checkpoints,
            job.recipe.checkpoint,
            self._exchange,
            lambda manifest: bound.why_foreign(job.run, job.ledger.now, manifest),
            job.run.check_owner,
            steps_back(job),
            job.run.ballast,
        )
        self._background = job.recipe.checkpoint.background and job.recipe.checkpoint.every != 0
        self._buffers: Buffers | None = None
        self._in_flight: _SaveInFlight | None = None
        self._saved_step: int | None = None
        """The newest step that is on disk."""
        self._slowest = 0.0
        """Seconds of the slowest save so far, or of one on a slow disk."""
        self._failures = 0
        self._owes = False
        """Whether the state came from a copy in memory, and a save of this step was lost with the ranks before."""
        self._course = job.course
        every = job.recipe.checkpoint.memory_every
        self._interval = SaveInterval(job.recipe.guard.mtbf, job.ledger.past.save_intervals, world, job.ledger)
        self._replicas = ReplicaCheck(job.recipe.guard.hash_every, world, job.ledger, observers.note)
        self._before = job.ledger.past.slowest_save
        """Seconds of the slowest save of earlier attempts; 0: none is known."""
        self.memory = MemoryTier(job.copies, every, world, job.ledger, observers.note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._in_flight is None or (kind is not None and issubclass(kind, KeyboardInterrupt)):
            return
        self._exchange.cancel()  # other ranks may be gone; finish the part of this one
        self._ends_in_time(self._in_flight, self._in_flight.snapshot)

    def restore(self, state: State) -> Restored | None:
        """Read the newest state into `state`: a copy in memory, else the newest checkpoint that verifies, else None."""
        self._control.deadline.expect_save(self._before or num_bytes(state) / SLOW_DISK)
        found, on_disk = None, self._store.newest_step
        if self.memory.restore(state, on_disk):
            found = Restored("memory", "the copy in memory")
            every = self._course.before(state.step).recipe.checkpoint.every
            self._owes = state.step > on_disk and self._is_due(state.step, every)
        elif (folder := self._store.restore(state)) is not None:
            self._saved_step = state.step
            found = Restored(folder.name, str(folder))
        if self._background:
            self._buffers = Buffers(state.engine.world.device)
            take_snapshot(state, self._buffers)  # allocate the memory here, not in the first save
        return found

    def newest_up_to(self, step: int) -> str:
        """Name of the newest checkpoint of at most `step` steps that verifies; "" where there is none."""
        return self._store.newest_up_to(step)

    def save(self, state: State, *, final: bool = False) -> None:
        """Return when this step is on disk. Raises StorageError if it cannot be written, and ReplicasDifferError."""
        self._settle(state)
        if self._saved_step != state.step:
            self._replicas.compare_if_due(state, saving=True)
            self._begin(state, None, final=final)
            self._settle(state, may_fail=False)

    def keep(self, state: State, every: int | Literal["auto"], step: Step) -> None:
        """After a step: compare the replicas, begin a scheduled save, copy the state in memory, each if it is due.

        `every`: steps between saves; the loop saves the last step itself. Raises UntrustedCopyError and
        ReplicasDifferError.
        """
        self.memory.judge(step)
        due = self._is_due(state.step, every)
        self._replicas.compare_if_due(state, saving=due or self.memory.is_due(state))
        if due and not step.final:
            self._control.enter("save", state)
            begun = time.monotonic()
            self.try_save(state)
            if every == "auto":
                self._interval.measure(state, begun)
        self.memory.copy_if_due(state)

    def _is_due(self, step: int, every: int | Literal["auto"]) -> bool:
        return self._interval.is_due(step) if every == "auto" else is_due(step, every)

    def try_save(self, state: State) -> None:
        """Begin a scheduled save. The first failure is noted, and the run goes on."""
        self._settle(state)
        if self._saved_step == state.step:
            return
        buffers = None if self._failures else self._buffers
        self._begin(state, buffers)
        if buffers is None:
            self._settle(state)

    def poll(self, state: State) -> None:
        """Record a save that has reached the disk since the last step; begin again one that ranks died in.

        Else ranks that die in each save would go on from copies in memory for ever, and never have a checkpoint.
        """
        if self._owes:
            self._owes = False
            self._control.enter("save", state)
            self.try_save(state)
        if self._in_flight is not None and self._in_flight.written.done():
            self._settle(state)

    def forget(self, state: State) -> None:
        """Free the memory of background saves, and drop copies: the state is about to be another.

        Waits for a save in flight.
        """
        self._settle(state)
        self.memory.forget()
        if self._buffers is not None:
            self._buffers = Buffers(state.engine.world.device)

    def _begin(self, state: State, buffers: Buffers | None, *, final: bool = False) -> None:
        """Start to write the state, from a copy in `buffers`, or itself (it must not change until then)."""
        started = time.monotonic()
        self._control.deadline.begin_save()
        self._slowest = self._slowest or num_bytes(state) / SLOW_DISK
        metrics = self._observers.metrics.sync()  # a checkpoint is never newer than the record of its steps
        snapshot, score = take_snapshot(state, buffers), self._observers.evaluation.losses.get(state.step)
        ledger = self._ledger.ends

        def write() -> tuple[Path, float]:
            return self._store.save(snapshot, final=final, score=score, ledger=ledger), time.monotonic()

        written = in_background(write, gives_way=buffers is not None)
        self._in_flight = _SaveInFlight(snapshot, final, started, written, time.monotonic() - started, metrics)

    def _settle(self, state: State, *, may_fail: bool = True) -> None:
        """Return when no save is in flight. If it may fail, the first failure is noted, the second in a row raised."""
        self._await(state)
        if self._in_flight is None:
            return
        save, self._in_flight = self._in_flight, None
        try:
            self._record(save, state)
        except StorageError as error:
            self._failures += 1
            if self._failures > 1 or not may_fail:
                raise
            self._ledger.note("warning", save.snapshot, text=f"the save failed: {error}")
            self._observers.note(f"could not save, older checkpoints are untouched, training goes on: {error}")

    def _record(self, save: _SaveInFlight, state: State) -> None:
        """Write into the ledger that a save has ended well; StorageError if it failed."""
        folder, durable = save.written.result()
        self._saved_step, self._failures = save.snapshot.step, 0
        seconds = {"seconds": durable - save.started, "held_seconds": save.held_seconds}
        self._slowest = max(self._slowest, seconds["seconds"])
        self._control.deadline.end_save(seconds["seconds"])
        fields = {**self._store.digests, "metrics": save.metrics}
        self._ledger.note("save", save.snapshot, checkpoint=folder.name, final=save.final, **fields, **seconds)
        self.pass_on_notes(state)
        self._observers.note(f"saved {folder.name}")

    def _await(self, state: State) -> None:
        """Wait until nothing is being written; RankLostError or StorageError at the deadline."""
        save, waited_from = self._in_flight, time.monotonic()
        if save is None:
            return
        in_time = self._ends_in_time(save, state)
        save.held_seconds += time.monotonic() - waited_from
        if in_time:
            return
        self._in_flight = None
        self._exchange.cancel()
        if futures.wait([save.written], GRACE_SECONDS).done:
            save.written.result()
        self._exchange.refuse_silence()
        limit = deadline(self._slowest)
        raise StorageError(
            f"the save of step {save.snapshot.step:,} was given up after {limit:.0f} s: the disk does "
            "not answer, or far too slowly. Older checkpoints are untouched: see to it, then `hornbook resume` goes on"
        )

    def _ends_in_time(self, save: _SaveInFlight, at: Position) -> bool:
        """Wait for a save; whether it ended before its deadline, not counting time in which this process was frozen."""
        for _ in range(math.ceil(deadline(self._slowest) / WAIT_SECONDS)):
            if futures.wait([save.written], WAIT_SECONDS).done:
                return True
            self._control.enter("save", at)
        return False

    def pass_on_notes(self, state: State) -> None:
        """Write the notes of the store (damage, litter, removals) into the ledger."""
        for note in self._store.take_notes():
            self._ledger.note(note.kind, state, path=note.path, text=note.text)
            self._observers.note(f"{note.path}: {note.text}")


def steps_back(job: Job) -> int:
    """Steps that the guard of a run may want to go back: those until it finds a divergence, and the margin before."""
    length = job.length
    steps = length.batches.steps(0, length.planned)
    return Spans(steps).of(WINDOW, LEAST_BACK) if job.recipe.guard.mode in ("safe", "auto") else 0


def deadline(slowest: float) -> float:
    """Seconds that a save may take, where the slowest so far took `slowest`."""
    return max(MIN_DEADLINE, PATIENCE * slowest)


def num_bytes(state: State) -> int:
    """Approximate size of a checkpoint of all ranks: weights in float32, and moments."""
    moments = sum(math.prod(each.shape) * each.tensor.element_size() for each in state.moments().values())
    return 4 * state.engine.num_parameters + moments
