"""Injects the faults of a plan: a rank that enters a phase looks whether one waits for it there.

What has struck is a byte in memory that the ranks share with their supervisor, because a rank that kills itself cannot
write the ledger afterwards, and only rank 0 may. Rank 0 records its own faults before they strike; those of other ranks
are recorded by rank 0 when it enters its next phase, or by the supervisor when its generation has ended.
"""

import contextlib
import errno
import functools
import itertools
import math
import mmap
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from hornbook.errors import HornbookError, UsageError, planned
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.commit import list_checkpoints
from hornbook.run.job.fault_plan import (
    PASSES,
    AnyFault,
    ClockFault,
    DiskFault,
    ErrorFault,
    ExitFault,
    FaultPlan,
    FileFault,
    NetworkFault,
    NumberFault,
    SignalFault,
    SlowFault,
    error_class,
)
from hornbook.run.ledger.ledger import At, Ledger, Position, RunWriter

if TYPE_CHECKING:
    from hornbook.run.checkpoints.state import State

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""Environment variable of torchrun: how often it has started the ranks again."""
MOST_RANKS = 1024
PASSED_ON_SECONDS = 10.0
"""Longest wait for a signal that the supervisor passes on."""
BIT, BIT_OF_HALF = 22, 6
"""The highest bit of the significand of float32 and of bfloat16: a flip changes a number by a quarter to a half."""
_SIGNALS = {
    "kill9": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "sigterm": signal.SIGTERM,
    "sigint": signal.SIGINT,
    "sigusr1": signal.SIGUSR1,
}
_STRUCK, _NOTED = b"\1", b"\2"
"""Flags of a fault on a rank; 0: it has not struck yet."""
T = TypeVar("T")


class FaultInjector:
    """The faults of one command, in all generations of its ranks."""

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self._first = int(os.environ.get(RESTARTS, "0"))
        self._generation = self._first - 1
        self._flags = mmap.mmap(-1, len(plan.faults) * MOST_RANKS)
        self._ever = mmap.mmap(-1, len(plan.faults))
        """Whether a fault has struck in any generation."""

    def begin(self, ledger: Ledger) -> None:
        """A new generation of ranks; before the first the ledger gets the plan."""
        if self._generation < self._first:
            ledger.note("fault_plan", At(), faults=[fault.model_dump(mode="json") for fault in self.plan.faults])
        self._generation += 1
        self._flags[:] = bytes(len(self._flags))

    def note_struck(self, ledger: Ledger) -> None:
        """Record what struck other ranks since the last call."""
        while (place := self._flags.find(_STRUCK)) >= 0:
            self._note(ledger, *divmod(place, MOST_RANKS))

    def end_generation(self, run: RunDir) -> None:
        """The same once all ranks have ended, if anything is left to record and the ledger can be written."""
        if self._flags.find(_STRUCK) >= 0:
            with contextlib.suppress(HornbookError), Ledger(run) as ledger:
                ledger.attempt = max(ledger.past.attempt, 1)
                for record in read_records(run.events):  # rank 0 may have been killed behind its note
                    if record["kind"] == "fault" and record["attempt"] == ledger.attempt:
                        self._flags[record["number"] * MOST_RANKS + record["rank"]] = _NOTED[0]
                self.note_struck(ledger)

    def left(self) -> str:
        """What the plan asked for and did not happen, as a line; "" where all faults have struck."""
        names = [f"faults.{n} ({each.do})" for n, each in enumerate(self.plan.faults) if not self._ever[n]]
        if not names:
            return ""
        return (
            f"{', '.join(names)} of the fault plan did not strike: its rank never entered its phase with its step done "
            'in its generation (0, where none is given: the ranks that start first; "every" is any)'
        )

    def _note(self, ledger: Ledger, number: int, rank: int) -> None:
        fault = self.plan.faults[number]
        where = {"rank": rank, "phase": fault.phase, "generation": self._generation}
        ledger.note("fault", At(fault.at.step), do=fault.do, number=number, **where)
        self._flags[number * MOST_RANKS + rank] = _NOTED[0]

    def strike(self, rank: int, phase: str, at: Position, output: RunWriter, is_asked: Callable[[], bool]) -> None:
        """Inject what is due on this rank as it enters a phase; `is_asked`: whether it was told to stop."""
        if output.is_rank0:
            self.note_struck(output.ledger)
        for number, fault in enumerate(self.plan.faults):
            if not self._is_due(number, fault, rank, at):
                continue
            if fault.phase == phase:
                self._act(number, rank, output, functools.partial(act, fault, at, output.run, is_asked, rank))
            elif phase == "forward_backward" and fault.phase in PASSES:
                inject = functools.partial(self._act, number, rank, output)
                within_pass(fault, _state(at), output.run, inject)

    def _is_due(self, number: int, fault: AnyFault, rank: int, at: Position) -> bool:
        if fault.at.rank not in ("every", rank) or fault.at.generation not in ("every", self._generation):
            return False
        if isinstance(fault, SlowFault):
            return 0 <= at.step - fault.at.step < fault.steps
        returns = isinstance(fault, NumberFault) and fault.again
        return at.step == fault.at.step and (returns or self._flags[number * MOST_RANKS + rank] == 0)

    def _act(self, number: int, rank: int, output: RunWriter, strike: Callable[[], T]) -> T:
        """Mark the fault, have rank 0 record it, and let it strike."""
        place = number * MOST_RANKS + rank
        self._ever[number] = 1
        if self._flags[place] == 0:  # else it is the next step of a slow rank
            self._flags[place] = _STRUCK[0]
            if output.is_rank0:
                self._note(output.ledger, number, rank)
        return strike()


def act(fault: AnyFault, at: Position, run: RunDir, is_asked: Callable[[], bool] = lambda: True, rank: int = 0) -> None:
    """Let a fault strike that needs no pass of the model."""
    match fault:
        case SignalFault():
            send_signal(fault, is_asked)
        case ErrorFault():
            raise planned(error_class(fault.error)(fault.text))
        case ExitFault():
            os._exit(fault.code)
        case FileFault():
            damage_checkpoint(run, torn=fault.do == "torn_shard")
        case DiskFault():
            name = "posix_fallocate" if fault.do == "enospc" and rank == 0 else "pwrite"  # rank 0 allocates for all
            fail_calls(name, getattr(errno, fault.do.upper()), fault.times)
        case SlowFault():
            time.sleep(fault.seconds)
        case ClockFault():
            set_clock(fault.seconds)
        case NetworkFault():
            cut_connections()
        case NumberFault():
            weights = [shard.tensor.detach() for shard in _state(at).engine.shards.values()]
            flip(max(weights, key=Tensor.numel))


def send_signal(fault: SignalFault, is_asked: Callable[[], bool]) -> None:
    """Send a signal, at once or later. One to the supervisor is waited for, so that the step at which it comes back to
    this rank is the same every time.
    """
    number, upwards = _SIGNALS[fault.do], fault.to == "supervisor"
    victim = os.getppid() if upwards else os.getpid()
    if fault.after:
        threading.Timer(fault.after, os.kill, (victim, number)).start()
        return
    os.kill(victim, number)
    deadline = time.monotonic() + PASSED_ON_SECONDS
    while upwards and not is_asked() and time.monotonic() < deadline:
        time.sleep(0.001)


Inject = Callable[[Callable[[], Tensor | None]], Tensor | None]
"""Records a fault, and lets it strike."""


def within_pass(fault: AnyFault, state: "State", run: RunDir, inject: Inject) -> None:
    """Have a fault strike within the next call of the model, at its hidden states or at their gradient."""

    def strike(values: Tensor) -> Tensor | None:
        return inject(lambda: _changed(fault, values) if isinstance(fault, NumberFault) else act(fault, state, run))

    def of_hidden(_: object, __: object, output: tuple[Tensor, Any]) -> Any:
        handle.remove()
        if fault.phase == "backward":
            output[0].register_hook(strike)
            return None
        changed = strike(output[0])
        return None if changed is None else (changed, *output[1:])

    handle = state.engine.model.register_forward_hook(of_hidden)


def _changed(fault: NumberFault, values: Tensor) -> Tensor:
    values = values.clone(memory_format=torch.contiguous_format)
    if fault.do == "bitflip_grad":
        flip(values)
    else:
        values.view(-1)[0] = math.nan if fault.do == "nan_batch" else math.inf
    return values


def flip(values: Tensor) -> None:
    """Flip one bit of the number of the largest magnitude, in place. values: contiguous, of 2 or 4 bytes."""
    flat, half = values.view(-1), values.element_size() == 2
    flat.view(torch.int16 if half else torch.int32)[flat.abs().argmax()] ^= 1 << (BIT_OF_HALF if half else BIT)


def damage_checkpoint(run: RunDir, *, torn: bool) -> None:
    """Damage the largest file of tensors of the newest checkpoint. UsageError if there is none yet."""
    newest = next(iter(list_checkpoints(run.checkpoints)), None)
    if newest is None:
        raise UsageError(f"the fault plan damages a checkpoint, and {run.checkpoints} has none yet: name a later step")
    path = max(newest.rglob("*.safetensors"), key=lambda each: each.stat().st_size)
    size = path.stat().st_size
    if torn:
        os.truncate(path, size // 2)
        return
    with path.open("r+b") as file:
        file.seek(size - 3)
        byte = file.read(1)[0]
        file.seek(size - 3)
        file.write(bytes([byte ^ 4]))


def fail_calls(name: str, number: int, times: int) -> None:
    """Have the next calls of `os.NAME` in this process fail with an error of the system."""
    really, left = getattr(os, name), itertools.count(1)

    def fail(*_: Any) -> Any:
        if next(left) >= times:
            setattr(os, name, really)
        raise OSError(number, os.strerror(number))

    setattr(os, name, fail)


def set_clock(seconds: float) -> None:
    """Set the wall clock of this process forward by so many seconds."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def cut_connections() -> None:
    """End every TCP connection of this process; whoever uses one, on either side, meets an error."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.getpeername()  # an error where it only listens
                connection.shutdown(socket.SHUT_RDWR)


def _state(at: Position) -> "State":
    from hornbook.run.checkpoints.state import State

    assert isinstance(at, State), "the loop enters these phases with its state"
    return at
