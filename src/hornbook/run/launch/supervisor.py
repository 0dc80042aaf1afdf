"""The supervisor: starts the ranks of a run on this machine, watches them, and starts them again when one dies.

It is the process that a person started. It computes nothing and has no threads, so a rank is a fork away. When a rank
dies or falls silent, every rank of that incarnation is killed, and the next one resumes from the newest checkpoint
that verifies: a step is either done by all ranks or, as far as checkpoints know, by none.
"""

import contextlib
import functools
import importlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from hornbook.data.shards.shard import truncated
from hornbook.errors import Exit, IntegrityError, RetriesSpentError, StorageError
from hornbook.files.run_directory import RunDir, Status
from hornbook.parallel.world import RankInfo
from hornbook.run.checkpoints.commit import list_checkpoints
from hornbook.run.config import GuardConfig
from hornbook.run.job import Job
from hornbook.run.launch.failure import Failure, diagnose, diagnose_hang, keep_evidence
from hornbook.run.launch.pulse import Pulse, shared_pulses
from hornbook.run.launch.rank import Rank, fork_rank, wait_for_ends
from hornbook.run.launch.signals import STOP_SIGNALS, StopSignals
from hornbook.run.ledger import At, Ledger

PERIOD = 0.25
"""Seconds between two looks at the heartbeats; an end is seen at once."""
LEAST_SILENCE, FIRST_SILENCE = 10.0, 300.0
"""Seconds: the shortest silence that is a hang, and the shortest in a phase that a rank was never through before."""
BACKOFF = (0.0, 1.0, 5.0, 30.0)
"""Seconds to wait before the first, second, ... restart without a new checkpoint between."""

OpenJob = Callable[[bool], AbstractContextManager[Job]]
"""Opens the job of the next incarnation; the argument says whether there was one before."""


class Supervisor:
    """Runs incarnations of ranks until the work is done, someone stops it, or trying again does not help."""

    def __init__(self, run: RunDir, guard: GuardConfig, signals: StopSignals, *, quiet: bool) -> None:
        self._run, self._guard, self._signals, self._quiet = run, guard, signals, quiet
        self._restarts = 0
        self._newest = newest_step(run)

    def run(self, open_job: OpenJob, loop: Callable[[Job], Exit], size: int) -> Exit:
        """Run `loop(job)` on `size` ranks; their exit code. Raises what ended them, or RetriesSpentError."""
        failure = None
        try:
            for number in itertools.count():
                outcome = self._incarnation(open_job, loop, size, number, failure)
                if not isinstance(outcome, Failure):
                    return self._leave(outcome)
                failure = outcome
                self._prepare_restart(failure)
                if self._signals.received is not None:  # another incarnation could only stop where this one began
                    return self._stop(failure.beat.at)
            raise AssertionError
        except KeyboardInterrupt:
            return self._leave(Exit.INTERRUPTED)
        except BaseException as error:
            self._note_failure(error, failure.beat.at if failure else At())
            raise

    def _incarnation(
        self, open_job: OpenJob, loop: Callable[[Job], Exit], size: int, number: int, failure: Failure | None
    ) -> Exit | Failure:
        with contextlib.ExitStack() as stack:
            with open_job(number > 0) as job:
                if failure is not None:
                    job.ledger.note("restart", failure.beat.at, restarts=self._restarts, **failure.record())
                ranks = stack.enter_context(running_ranks(job, loop, size, number, self._signals))
            outcome = self._watch(ranks)
            if isinstance(outcome, Failure):
                keep_evidence(self._run, job.ledger.attempt, ranks)
        if isinstance(outcome, Failure) and outcome.report is None and (damage := truncated(job.inputs.corpus.shards)):
            raise damage  # it was killed where it read what is no longer there (SIGBUS)
        return outcome

    def _watch(self, ranks: Sequence[Rank]) -> Exit | Failure:
        """Wait until all ranks have ended in peace, or one has not."""
        running, silences = list(ranks), {rank: Silence(rank) for rank in ranks}
        while running:
            for rank in wait_for_ends(running, PERIOD):
                running.remove(rank)
            unrest = [rank for rank in ranks if rank not in running and not rank.peaceful]
            if unrest:
                return diagnose(unrest, running)
            lasting = {rank: silences[rank] for rank in running if silences[rank].lasts(self._guard.hang_seconds)}
            if lasting:
                return diagnose_hang({rank: silence.seconds for rank, silence in lasting.items()}, running)
            if any(rank.end.si_status == Exit.INTERRUPTED for rank in ranks if rank not in running):
                return Exit.INTERRUPTED
        return Exit(max(rank.end.si_status for rank in ranks))

    def _prepare_restart(self, failure: Failure) -> None:
        """Count, say and wait; or raise what a restart would not mend."""
        if failure.lasting is not None:
            raise failure.lasting
        newest = newest_step(self._run)
        self._restarts = 1 if newest > self._newest else self._restarts + 1
        self._newest = newest
        if failure.report is not None:
            self._tell(failure.report.traceback.rstrip())
        if self._restarts > self._guard.max_restarts:
            raise RetriesSpentError(
                f"{failure}; restarts without a new checkpoint: {self._guard.max_restarts}, as guard.max_restarts "
                f"allows. {self._run.incidents} holds what was said; `hornbook resume {self._run.path}` tries again"
            )
        seconds = BACKOFF[min(self._restarts, len(BACKOFF)) - 1]
        self._tell(f"{failure}: restart {self._restarts} of {self._guard.max_restarts}, in {seconds:g} s")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._signals.received is None:
            time.sleep(0.05)

    def _tell(self, text: str) -> None:
        """One line for people, on stderr and in log.txt; neither is worth a run."""
        line = f"{time.strftime('%H:%M:%S')} {text}\n"
        with contextlib.suppress(OSError), self._run.log.open("a", encoding="utf-8") as log:
            log.write(line)
        if not self._quiet:
            with contextlib.suppress(OSError):
                shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a killed leader leaves the cursor hidden
                sys.stderr.write(shown + line)
                sys.stderr.flush()

    def _stop(self, at: At) -> Exit:
        """Someone asked to stop while no rank was there to do so: the newest checkpoint is what there is."""
        self._note("stop", at, reason=self._signals.received)
        self._set_status("stopped")
        self._tell(f"stopped; `hornbook resume {self._run.path}` goes on from the newest checkpoint")
        return Exit.RESUMABLE

    def _leave(self, code: Exit) -> Exit:
        if code == Exit.INTERRUPTED:
            self._set_status("stopped")
        return code

    def _note_failure(self, error: BaseException, at: At) -> None:
        """What the ledger and the heartbeat say of a run that ends with an error."""
        with contextlib.suppress(StorageError, IntegrityError):
            self._run.check()
            self._set_status("failed")
            self._note("fail", at, error=type(error).__name__, text=str(error))

    def _note(self, kind: str, at: At, **fields: Any) -> None:
        """Write into the ledger, as part of the attempt that has ended."""
        with Ledger(self._run) as ledger:
            ledger.attempt = max(ledger.past.attempt, 1)
            ledger.note(kind, at, **fields)

    def _set_status(self, status: Status) -> None:
        state = self._run.read_state()
        if state is not None:
            self._run.write_state({**state, "status": status, "heartbeat": time.time()})


def preload() -> None:
    """Load once what every rank is about to need: parts of torch that are imported late."""
    importlib.import_module("torch._dynamo")


class Silence:
    """How long a rank has said nothing, as far as this process was there to listen."""

    def __init__(self, rank: Rank) -> None:
        self._pulse = rank.pulse
        self._sequence = -1
        self._looked = time.monotonic()
        self.seconds = 0.0

    def lasts(self, hang_seconds: float) -> bool:
        """Look again; whether it has lasted too long (`guard.hang_seconds`, 0: by what the phase took before)."""
        now, beat = time.monotonic(), self._pulse.read()
        # If this process was kept from running too (a busy or frozen machine), that is not the rank's silence.
        self.seconds = self.seconds + min(now - self._looked, 2 * PERIOD) if beat.sequence == self._sequence else 0.0
        self._looked, self._sequence = now, beat.sequence
        if not beat.slowest:
            return self.seconds > max(hang_seconds, FIRST_SILENCE)
        return self.seconds > (hang_seconds or max(LEAST_SILENCE, 5 * beat.slowest / 1e9))


@contextlib.contextmanager
def running_ranks(
    job: Job, loop: Callable[[Job], Exit], size: int, incarnation: int, signals: StopSignals
) -> Iterator[list[Rank]]:
    """Ranks that run `loop`, and after the context no longer exist.

    They meet in a memory file: no port, no folder, and nobody else can join. A stop signal reaches either this process
    before the first fork, and ranks inherit that it did, or every one of them after the last.
    """

    def pass_on(number: int) -> None:
        for rank in ranks:
            rank.send(number)

    store = os.memfd_create("store")
    connect = functools.partial(FileStore, f"/proc/self/fd/{store}", size)
    ranks: list[Rank] = []
    announces = signals.announces
    try:
        with stop_signals_blocked():
            for pulse in shared_pulses(size, incarnation):
                place = RankInfo(pulse.rank, size, pulse.rank, connect, same_devices=True)
                ranks.append(fork_rank(pulse, functools.partial(_loop_of_rank, job, loop, place, pulse, signals)))
            signals.pass_on = pass_on
            signals.announces = announces and not os.isatty(2)  # on a terminal rank 0 answers, which has the panel
        yield ranks
    finally:
        signals.pass_on, signals.announces = None, announces
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.reap()
        os.close(store)


def _loop_of_rank(job: Job, loop: Callable[[Job], Exit], place: RankInfo, pulse: Pulse, signals: StopSignals) -> Exit:
    signals.patient, signals.announces = True, signals.announces and place.is_rank0 and os.isatty(2)
    pulse.enter("setup", At())
    return loop(job.of_rank(place, pulse))


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Stop signals wait until the end of the context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def newest_step(run: RunDir) -> str:
    """Name of the newest checkpoint; "" before the first. Names of later steps are greater."""
    return next((folder.name for folder in list_checkpoints(run.checkpoints)), "")
