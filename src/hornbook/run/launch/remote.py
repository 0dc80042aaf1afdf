"""Runs the commands of a run over ssh, one per machine, until all have ended.

Their output is shown with the name of the machine. The input of each command is a pipe from this process: when it
closes, also because this process was killed, the run on that machine saves and stops, and is killed if it does not.
So when one machine fails, and the others do not end by themselves, their inputs are closed and their ends awaited.
"""

import contextlib
import math
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, TextIO

from hornbook.errors import Exit, RankLostError, UsageError
from hornbook.run.launch.cluster import SAVE_SECONDS, STARTED
from hornbook.run.launch.signals import StopSignals

NO_CONNECTION = 255
"""Exit code of ssh where it is ssh that failed."""
AGREE_SECONDS = 40.0
"""After a machine failed, time for the others to come to the same result, before they are asked to stop."""
END_SECONDS = SAVE_SECONDS + 90.0
"""Longest wait for machines that were asked to stop: they are killed there, and ssh finds a dead connection in 60 s."""
_PERIOD = 0.1


class Machine:
    """One machine: its ssh process, and what it said."""

    def __init__(self, host: str, command: Sequence[str]) -> None:
        self.host, self.reached, self.last = host, False, ""
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        streams = ((self.process.stdout, sys.stdout, ""), (self.process.stderr, sys.stderr, f"{host}: "))
        self._readers = [threading.Thread(target=self._copy, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def stop(self) -> None:
        """Ask the run there to save and stop."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def finish(self) -> None:
        """End the connection if it is there still, and show the rest of the output."""
        self.stop()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(1.0)

    def _copy(self, source: IO[bytes], target: TextIO, mark: str) -> None:
        with source:
            for line in source:
                text = line.decode(errors="replace").rstrip("\r\n")
                if text == STARTED:
                    self.reached = True
                    continue
                self.last = text or self.last
                with contextlib.suppress(OSError, ValueError):
                    target.write(f"{mark}{text}\n")
                    target.flush()


def run_remote(hosts: Sequence[str], commands: Sequence[Sequence[str]]) -> Exit:
    """Run one command per host; returns their exit code.

    Raises UsageError naming a host that cannot be reached, RankLostError for a connection that broke.
    """
    machines = list[Machine]()
    with StopSignals() as signals:
        try:
            for host, command in zip(hosts, commands, strict=True):
                machines.append(Machine(host, command))
            _wait(machines, signals)
        finally:
            for machine in machines:
                machine.finish()
    return _result(machines)


def _wait(machines: Sequence[Machine], signals: StopSignals) -> None:
    """Return when all have ended, or those that were asked to stop do not answer."""
    deadline, asked = math.inf, False
    while running := [machine for machine in machines if machine.code is None]:
        now, failed = time.monotonic(), [machine for machine in machines if machine.code]
        unreached = any(machine.code == NO_CONNECTION and not machine.reached for machine in failed)
        if asked and now > deadline:
            return
        if failed and deadline == math.inf:
            deadline = now + AGREE_SECONDS
        if not asked and (signals.received is not None or unreached or now > deadline):
            _stop(running, failed)
            deadline, asked = now + END_SECONDS, True
        time.sleep(_PERIOD)


def _stop(running: Sequence[Machine], failed: Sequence[Machine]) -> None:
    """Ask machines to stop; a line says so where it is not the person who asked."""
    if failed:
        ends = ", ".join(f"{machine.host} ended with exit code {machine.code}" for machine in failed)
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{ends}: stopping {', '.join(machine.host for machine in running)}\n")
    for machine in running:
        machine.stop()


def _result(machines: Sequence[Machine]) -> Exit:
    for machine in machines:
        if machine.code == NO_CONNECTION and not machine.reached:
            said = f": {machine.last}" if machine.last else ""
            raise UsageError(f"ssh does not reach {machine.host}{said}. `ssh {machine.host} true` must work by itself")
    codes = [machine.process.returncode for machine in machines]
    lost = [machine.host for machine, code in zip(machines, codes, strict=True) if code == NO_CONNECTION or code < 0]
    known = [Exit(code) for code in codes if code in list(Exit) and code not in (Exit.DONE, Exit.RESUMABLE)]
    if known:
        return known[0]
    if lost:
        raise RankLostError(f"the connection to {lost[0]} broke; start the command again, and the run goes on")
    return max((Exit(code) if code in list(Exit) else Exit.DEFECT for code in codes), default=Exit.DONE)
