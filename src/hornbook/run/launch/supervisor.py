"""The supervisor: starts the ranks of a run on this machine, watches them, and starts them again when one dies.

It is the process that a person started. It computes nothing and has no threads, so it can fork ranks. When a rank dies
or hangs, every rank of that generation is killed, and the next generation resumes from the newest checkpoint that
verifies: as far as checkpoints know, a step is done by all ranks or by none.
"""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from hornbook.data.shards.shard import truncated
from hornbook.errors import Exit, HardwareError, IntegrityError, RetriesSpentError, StorageError, quoted
from hornbook.files.run_directory import RunDir, Status
from hornbook.kernels.torch_versions import load_compiler
from hornbook.parallel.world import RankInfo
from hornbook.run.checkpoints.commit import newest_step
from hornbook.run.checkpoints.memory_copies import CopyMemory
from hornbook.run.job.heartbeat import shared_heartbeats
from hornbook.run.job.job import Job
from hornbook.run.job.signals import StopNow, StopSignals, stop_signals_blocked
from hornbook.run.launch.rank import (
    Failure,
    Rank,
    diagnose_end,
    diagnose_hang,
    end_ranks,
    fork_rank,
    keep_evidence,
    look_at,
)
from hornbook.run.launch.slot_recovery import SlotKeeper
from hornbook.run.launch.standby import Standby, StandbyPlan
from hornbook.run.ledger.ledger import At, Ledger, Position
from hornbook.settings.recipe import Recipe

if TYPE_CHECKING:
    from hornbook.run.job.faults import FaultInjector

BACKOFF = (0.0, 1.0, 5.0, 30.0)
"""Seconds to wait before the first, second, ... restart without a new checkpoint between."""

OpenJob = Callable[[bool, int], AbstractContextManager[Job]]
"""Opens the job of the next generation; the arguments: whether there was one before, and its number of ranks."""
Loop = Callable[[Job], Exit]


class Supervisor:
    """Runs generations of ranks until the work is done, a stop is requested, or a restart cannot help."""

    def __init__(
        self,
        run: RunDir,
        recipe: Recipe,
        signals: StopSignals,
        *,
        quiet: bool,
        renew: Callable[[], None],
        faults: "FaultInjector | None" = None,
    ) -> None:
        """`renew`: called several times a second; it keeps the run's lock."""
        self._run, self._guard, self._signals, self._quiet, self._renew = run, recipe.guard, signals, quiet, renew
        self.memory = CopyMemory(recipe.parallel.world) if recipe.checkpoint.memory_every else None
        """For copies of the state; None: there are none."""
        self._size = recipe.parallel.world
        """Ranks of the newest generation."""
        self._recovery = SlotKeeper(run, recipe, renew)
        self._standby: Standby | None = None
        self._faults = faults
        self._restarts = 0
        self._newest = self._progress()
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        """Called with every record that this process writes between and after generations (`Ledger.listeners`)."""

    def run(self, open_job: OpenJob, loop: Loop, plan: StandbyPlan | None = None) -> Exit:
        """Run `loop(job)` on the ranks of the recipe, or those that sound slots are left for; returns their exit code.

        plan: of ranks that wait for a failure; None: none do. Raises the lasting error, RetriesSpentError or
        HardwareError.
        """
        failure = None
        try:
            while True:
                outcome = self._run_generation(open_job, loop, plan, failure)
                if outcome == Exit.INTERRUPTED:
                    raise KeyboardInterrupt
                if not isinstance(outcome, Failure):
                    return outcome
                failure = outcome
                self._prepare_restart(failure)
                if self._signals.received is not None:  # another generation could only stop where this one started
                    return self._stop(failure.status)
        except StopNow:
            return self._stop(At(max(newest_step(self._run.checkpoints), 0)))
        except KeyboardInterrupt:
            self._set_status("stopped")
            return Exit.INTERRUPTED
        except BaseException as error:
            self._note_failure(error, failure.status if failure else At())
            raise
        finally:
            self._dismiss_standby()

    def _run_generation(
        self, open_job: OpenJob, loop: Loop, plan: StandbyPlan | None, failure: Failure | None
    ) -> Exit | Failure:
        size = self._recovery.world()
        if self.memory is not None and size != self._size:
            self.memory.forget()  # ranks of another number hold other parts
        self._size, devices = size, self._recovery.devices(size)
        with contextlib.ExitStack() as stack:
            waiting = self._take_standby(devices)
            with open_job(failure is not None, size) as job:
                if failure is not None:
                    job.ledger.note("restart", failure.status, restarts=self._restarts, **failure.fields())
                attempt, shards = job.ledger.attempt, job.inputs.corpus.shards
                if waiting is None:
                    started = running_ranks(job, loop, devices, self._signals, self.memory)
                else:
                    started = woken_ranks(waiting, attempt, self._signals)
                ranks = stack.enter_context(started)
            prepare = None
            if plan is not None and plan.ranks == size:
                prepare = functools.partial(Standby, plan, devices)
            outcome = self._watch(ranks, prepare)
            if isinstance(outcome, Failure):
                keep_evidence(self._run, attempt, ranks)
        if self._faults is not None:
            self._faults.end_generation(self._run)
        if isinstance(outcome, Failure) and outcome.report is None and (damage := truncated(shards)):
            raise damage  # the rank was killed (SIGBUS) where it read data that is no longer there
        return outcome

    def _take_standby(self, devices: Sequence[int]) -> Standby | None:
        """The waiting ranks, if they are for these devices and all there; else they are dismissed."""
        found = self._standby
        if found is not None and found.devices == list(devices) and found.whole:
            self._standby = None
            return found
        self._dismiss_standby()
        return None

    def _dismiss_standby(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    def _watch(self, ranks: Sequence[Rank], prepare: Callable[[], Standby] | None) -> Exit | Failure:
        """Wait until all ranks have ended cleanly, or one has failed or hangs; `prepare` once they make steps."""
        for seen in look_at(ranks, self._guard.hang_seconds):
            self._renew()
            if seen.failed:
                return diagnose_end(seen.failed, seen.running)
            if seen.silent:
                named = ", ".join(f"rank {rank.number}" for rank in seen.silent)
                self._log(f"silent: {named}; all ranks write their stacks")
                return diagnose_hang(seen.silent, seen.running)
            if any(rank.end.si_status == Exit.INTERRUPTED for rank in ranks if rank not in seen.running):
                return Exit.INTERRUPTED
            if prepare is not None and self._standby is None and seen.made_step:
                self._standby, prepare = prepare(), None
        return Exit(max(rank.end.si_status for rank in ranks))

    def _prepare_restart(self, failure: Failure) -> None:
        """Count, report and wait; raise an error that a restart cannot mend."""
        if failure.lasting_error is not None:
            raise failure.lasting_error
        newest = self._progress()
        self._restarts = 1 if newest > self._newest else self._restarts + 1
        self._newest = newest
        if failure.report is not None:
            self._log(failure.report.traceback.rstrip())
        self._recovery.note(failure)
        if self._recovery.asks_for_check(failure):
            self._check_machine(failure)
        if self._restarts > self._guard.max_restarts:
            raise RetriesSpentError(
                f"{failure}; restarts without a new checkpoint: {self._guard.max_restarts}, as guard.max_restarts "
                f"allows. {self._run.incidents} holds tracebacks; "
                f"`hornbook resume {quoted(self._run.path)}` tries again"
            )
        seconds = BACKOFF[min(self._restarts, len(BACKOFF)) - 1]
        self._log(f"{failure}: restart {self._restarts} of {self._guard.max_restarts}, in {seconds:g} s")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._signals.received is None:
            self._renew()
            time.sleep(0.05)

    def _check_machine(self, failure: Failure) -> None:
        """Check the machine, and leave out what fails. Raises RetriesSpentError where a third try would fail too."""
        with Ledger(self._run) as ledger:
            attempt = max(ledger.past.attempt, 1)
        verdict = self._recovery.check(attempt, self._recovery.accused(failure, self._size))
        found = [each.model_dump() for each in verdict.cordoned]
        self._note("machine_check", failure.status, cause=str(failure), cordoned=found, problems=verdict.problems)
        for each in verdict.cordoned:
            self._log(f"slot {each.slot} is left out from now on: {each.test}: {each.evidence}")
        if verdict.problems:
            raise HardwareError(f"{failure}; a check of the machine failed: {'; '.join(verdict.problems)}")
        if self._recovery.repeated and not verdict.cordoned:
            raise RetriesSpentError(
                f"{failure}, the second time in the same way, and a check found the machine sound: a third try would "
                f"fail too. {self._run.incidents} holds tracebacks; "
                f"`hornbook resume {quoted(self._run.path)}` tries again"
            )

    def _progress(self) -> int:
        """Step of the newest state that ranks can go on from."""
        return max(newest_step(self._run.checkpoints), -1 if self.memory is None else self.memory.newest(self._size))

    def _log(self, text: str) -> None:
        """Write a line to stderr and log.txt; a failure to write either must not end a run."""
        line = f"{time.strftime('%H:%M:%S')} {text}\n"
        with contextlib.suppress(OSError), self._run.log.open("a", encoding="utf-8") as log:
            log.write(line)
        if not self._quiet:
            with contextlib.suppress(OSError):
                shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a killed rank 0 leaves the cursor hidden
                sys.stderr.write(shown + line)
                sys.stderr.flush()

    def _stop(self, at: Position) -> Exit:
        """Stop where no rank is there to save: the newest checkpoint is the state."""
        self._note("stop", at, reason=self._signals.received)
        self._set_status("stopped")
        self._log(f"stopped; `hornbook resume {quoted(self._run.path)}` goes on from the newest checkpoint")
        return Exit.RESUMABLE

    def _note_failure(self, error: BaseException, at: Position) -> None:
        """Record in ledger and state.json that the run ended with an error."""
        with contextlib.suppress(StorageError, IntegrityError):
            self._run.check()
            self._set_status("failed")
            self._note("fail", at, error=type(error).__name__, text=str(error))

    def _note(self, kind: str, at: Position, **fields: Any) -> None:
        """Write into the ledger, as part of the attempt that has ended."""
        with Ledger(self._run) as ledger:
            ledger.attempt = max(ledger.past.attempt, 1)
            ledger.listeners += self.listeners
            ledger.note(kind, at, **fields)

    def _set_status(self, status: Status) -> None:
        state = self._run.read_state()
        if state is not None:
            self._run.write_state({**state, "status": status, "heartbeat": time.time()})


def preload() -> None:
    """Import before the fork what torch would import later in every rank."""
    load_compiler()


@contextlib.contextmanager
def running_ranks(
    job: Job, loop: Loop, devices: Sequence[int], signals: StopSignals, memory: CopyMemory | None = None
) -> Iterator[list[Rank]]:
    """Fork ranks that run `loop`, one for each device; when the context ends, all are killed and reaped.

    They meet in a memory file: no port, no folder, and no other process can join. A stop signal reaches either this
    process before the first fork, and all ranks inherit that it came, or every rank after the last fork.
    """

    def pass_on(number: int) -> None:
        for rank in ranks:
            rank.send(number)

    store, size = os.memfd_create("store"), len(devices)
    connect = functools.partial(FileStore, f"/proc/self/fd/{store}", size)
    ranks: list[Rank] = []
    announces = signals.announces
    try:
        with stop_signals_blocked():
            for heartbeat in shared_heartbeats(size):
                device = devices[heartbeat.rank]
                info = RankInfo(heartbeat.rank, size, device, connect, same_devices=True)
                on_rank = functools.partial(job.on_rank, info, heartbeat, memory)
                ranks.append(fork_rank(heartbeat, functools.partial(_run_loop, on_rank, loop, signals)))
            signals.pass_on = pass_on
            signals.announces = announces and not os.isatty(2)  # on a terminal rank 0 answers, which has the panel
        yield ranks
    finally:
        signals.pass_on, signals.announces = None, announces
        end_ranks(ranks)
        os.close(store)


@contextlib.contextmanager
def woken_ranks(standby: Standby, attempt: int, signals: StopSignals) -> Iterator[list[Rank]]:
    """Let ranks on standby train; when the context ends, all are killed and reaped."""

    def pass_on(number: int) -> None:
        for rank in standby.ranks:
            rank.send(number)

    announces = signals.announces
    try:
        with stop_signals_blocked():
            signals.pass_on = pass_on
            signals.announces = announces and not os.isatty(2)
            standby.go(attempt)
        yield standby.ranks
    finally:
        signals.pass_on, signals.announces = None, announces
        standby.close()


def _run_loop(on_rank: Callable[[], Job], loop: Loop, signals: StopSignals) -> Exit:
    job = on_rank()
    signals.patient, signals.announces = True, signals.announces and job.rank_info.is_rank0 and os.isatty(2)
    job.control.enter("setup", At())
    return loop(job)
