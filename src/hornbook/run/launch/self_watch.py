"""A rank that watches itself, where torchrun or Slurm started it and no supervisor of ours sees it.

When one rank hangs, the others wait for it and fall silent too, so each looks at its own heartbeat. One that cannot run
at all is ended by its launcher, as soon as another has ended. A slow disk makes ranks silent as well, and a launcher
takes minutes to start them again: at the deadline of `Watchdog` stacks are written, and only after `PATIENCE` times as
long (or at once, where `guard.hang_seconds` gives the deadline) does the process end.
"""

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hornbook.errors import RankLostError
from hornbook.files.run_directory import RunDir
from hornbook.run.job.heartbeat import PERIOD, Heartbeat, Watchdog
from hornbook.run.launch.rank import DUMP_SECONDS, Failure, note_hang
from hornbook.run.ledger.ledger import Ledger

PATIENCE = 4
"""Times the silence that counts as a hang after which the process ends."""


@contextlib.contextmanager
def watching_itself(heartbeat: Heartbeat, run: RunDir, ledger: Ledger, hang_seconds: float) -> Iterator[None]:
    """End this process with RankLostError's code if its heartbeat stands still. hang_seconds: `guard.hang_seconds`."""
    over = threading.Event()
    watch = _SelfWatch(heartbeat, run, ledger, hang_seconds)
    thread = threading.Thread(target=watch.look_until, args=(over,), name="hang watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True)
class _SelfWatch:
    heartbeat: Heartbeat
    run: RunDir
    ledger: Ledger
    """Of the rank: it knows the attempt."""
    hang_seconds: float

    def look_until(self, over: threading.Event) -> None:
        watchdog, silent = Watchdog(self.heartbeat), 0.0
        while not over.wait(PERIOD):
            hangs = watchdog.expired(self.hang_seconds) and self.heartbeat.read().sequence > 0
            if hangs and not silent:
                silent = watchdog.seconds
                _briefly(self._write_stacks)
            elif silent and not hangs:
                silent = 0.0
                self._say("goes on")
            if hangs and (self.hang_seconds or watchdog.seconds >= PATIENCE * silent):
                self._end(watchdog.seconds)

    @property
    def _stacks(self) -> Path:
        return self.run.incidents / str(self.ledger.attempt) / f"rank-{self.heartbeat.rank}.txt"

    def _say(self, what: str) -> None:
        status = self.heartbeat.read()
        sys.stderr.write(f"rank {self.heartbeat.rank} {what} (step {status.step}, {status.phase})\n")

    def _write_stacks(self) -> None:
        """Of all threads, of every rank; a disk that does not answer must not keep the process from ending."""
        with contextlib.suppress(OSError):
            self.run.incidents.mkdir(exist_ok=True)  # without parents: a run that was moved is not made anew
            self._stacks.parent.mkdir(exist_ok=True)
            with self._stacks.open("w", encoding="utf-8") as file:
                faulthandler.dump_traceback(file, all_threads=True)
            self._say(f"is silent: its stacks are in {self._stacks}")

    def _end(self, seconds: float) -> None:
        failure = Failure(self.heartbeat.rank, f"was silent for {seconds:.1f} s", self.heartbeat.read())
        remedy = f"its stacks are in {self._stacks}. Start all ranks again, and the run goes on"
        error = RankLostError(f"{failure}: {remedy}")
        if self.heartbeat.rank == 0:
            _briefly(lambda: note_hang(self.run, failure, error))
        sys.stderr.write(f"error {error}\n")
        sys.stderr.flush()
        os._exit(error.exit_code)  # the thread that trains does not come back


def _briefly(do: Callable[[], None]) -> None:
    """Call `do` in a thread of its own, and wait a few seconds: a disk may be what the rank waits for."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(DUMP_SECONDS)
