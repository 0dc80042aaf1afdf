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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, TextIO

from hornbook.errors import Exit, HornbookError, RankLostError, UsageError
from hornbook.run.job.signals import StopSignals
from hornbook.run.launch.cluster import SAVE_SECONDS, STARTED

NO_CONNECTION = 255
"""Exit code of ssh where it is ssh that failed."""
AGREE_SECONDS = 40.0
"""After a machine failed, time for the others to come to the same result, before they are asked to stop."""
END_SECONDS = SAVE_SECONDS + 90.0
"""Longest wait for machines that were asked to stop: they are killed there, and ssh finds a dead connection in 60 s."""
PAUSE_SECONDS = 1.0
"""Before another start."""
_PERIOD = 0.1
_KILLED = (134, 137)
"""Exit codes of a shell whose program was ended by SIGABRT or SIGKILL."""
CommandsOf = Callable[[Sequence[str]], Sequence[Sequence[str]]]
"""The command of each host; raises UsageError where the run does not divide over so many."""


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


@dataclass(frozen=True)
class Ended:
    """How a start on some machines ended."""

    code: Exit
    error: HornbookError | None = None
    """To raise in place of the code."""
    lost: tuple[str, ...] = ()
    """Machines that another start should do without: not reached, cut off, killed, or faulty by their own check."""
    asked: bool = False
    """A person asked to stop."""

    @property
    def may_go_on(self) -> bool:
        """Whether another start could go on."""
        return not self.asked and (bool(self.lost) or self.code == Exit.RESUMABLE)

    def result(self) -> Exit:
        """The exit code. Raises the error, if there is one."""
        if self.error is not None:
            raise self.error
        return self.code


def run_again(hosts: Sequence[str], spares: Sequence[str], restarts: int, commands_of: CommandsOf) -> Exit:
    """Run one command per host, up to `restarts` times again where machines or ranks were lost; return the exit code.

    Spares take the places of lost machines. Where none is left, the others continue alone, as many as `commands_of` has
    commands for: it raises UsageError for a number that the run does not divide over. Raises UsageError naming a host
    that cannot be reached, RankLostError for a connection that broke.
    """
    hosts, waiting, ended = list(hosts), list(spares), _run_once(hosts, commands_of(hosts))
    if isinstance(ended.error, UsageError):  # nothing ran yet: a wrong name
        raise ended.error
    while restarts and ended.may_go_on:
        restarts -= 1
        left = [host for host in hosts if host not in ended.lost]
        while waiting and len(left) < len(hosts):
            left.append(waiting.pop(0))
        hosts, commands = _most(left, commands_of)
        if not hosts:
            break
        why = f"lost {', '.join(ended.lost)}" if ended.lost else "a rank was lost"
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{why}: starting again on {', '.join(hosts)}\n")
        time.sleep(PAUSE_SECONDS)
        ended = _run_once(hosts, commands)
    return ended.result()


def _most(hosts: Sequence[str], commands_of: CommandsOf) -> tuple[list[str], Sequence[Sequence[str]]]:
    """The most of these machines that there are commands for, and those; none where there are no commands."""
    for count in range(len(hosts), 0, -1):
        with contextlib.suppress(UsageError):
            return list(hosts[:count]), commands_of(hosts[:count])
    return [], []


def _run_once(hosts: Sequence[str], commands: Sequence[Sequence[str]]) -> Ended:
    machines = list[Machine]()
    with StopSignals() as signals:
        try:
            for host, command in zip(hosts, commands, strict=True):
                machines.append(Machine(host, command))
            _wait(machines, signals)
        finally:
            for machine in machines:
                machine.finish()
        return replace(_result(machines), asked=signals.received is not None)


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


def _result(machines: Sequence[Machine]) -> Ended:
    codes = {machine.host: machine.process.returncode for machine in machines}
    unreached = [machine for machine in machines if machine.code == NO_CONNECTION and not machine.reached]
    lost = tuple(host for host, code in codes.items() if code in (NO_CONNECTION, Exit.HARDWARE, *_KILLED) or code < 0)
    if unreached:
        host, last = unreached[0].host, unreached[0].last
        said = f": {last}" if last else ""
        text = f"ssh does not reach {host}{said}. `ssh {host} true` must work by itself"
        return Ended(Exit.USAGE, UsageError(text), lost)
    known = [Exit(code) for code in codes.values() if code in list(Exit) and code not in (Exit.DONE, Exit.RESUMABLE)]
    if known:
        return Ended(known[0], lost=lost if set(known) == {Exit.HARDWARE} else ())
    broken = [host for host, code in codes.items() if code == NO_CONNECTION or code < 0]
    if broken:
        text = f"the connection to {broken[0]} broke; start the command again, and the run goes on"
        return Ended(Exit.RESUMABLE, RankLostError(text), lost)
    code = max((Exit(code) if code in list(Exit) else Exit.DEFECT for code in codes.values()), default=Exit.DONE)
    return Ended(code, lost=lost)
