"""What a failure says about the machine: when to check it before a restart, and which slots ranks get after that.

A kill from outside says nothing. A crash in machine code, a lost GPU, replicas that differ, and the same failure of the
same step twice do: then the slots are checked (`hornbook.run.machine.deep.slots`), and those that fail go onto the
cordon list.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from hornbook.errors import DoesNotFitError, HardwareError, HornbookError, LostDeviceError, RankLostError, quoted
from hornbook.files.durable import write_atomic
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.kernels.device_errors import device_error
from hornbook.parallel.config import axis_ranks
from hornbook.parallel.device import choose_device
from hornbook.run.checkpoints.memory_tier import UntrustedCopyError
from hornbook.run.job.job import Job
from hornbook.run.job.micro_batch import does_not_fit
from hornbook.run.launch.rank import Failure, Report
from hornbook.run.machine.deep.cordon import Cordon, CordonList
from hornbook.run.machine.deep.slots import SlotFault, SlotReport, check_slots, judge
from hornbook.run.observe.audit import FaultyRankError
from hornbook.run.observe.replicas import ReplicasDifferError
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved, override
from hornbook.settings.sources import Given, Source

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals that a rank gets for what it did itself."""
_FAULTY = (ReplicasDifferError.__name__, FaultyRankError.__name__, LostDeviceError.__name__)
"""Errors that say that a machine is faulty."""
_GLOO = re.compile(r"\[\S+\.cc:\d+\] |This is typically caused by a remote worker crashing.*", re.DOTALL)
"""Parts of an error of gloo that tell a user nothing: the place in its source, and advice."""
CHECK_BYTES = 64 << 20
"""Memory of each slot that is checked before a restart."""


def with_remedy(job: Job, error: BaseException) -> HornbookError | None:
    """The error to raise instead of one that ended the training loop; None for a defect."""
    if (known := device_error(error)) is not None:
        if isinstance(known, DoesNotFitError):
            return does_not_fit(job, str(known), job.recipe.train.micro_rows)
        return type(known)(f"{known}. `hornbook resume {quoted(job.run.path)}` goes on from the newest checkpoint")
    if job.rank_info.size > 1 and Report.of(error).by_peer:
        return RankLostError(f"another rank went away: {_GLOO.sub('', str(error)).rstrip('. ')}. Start all ranks again")
    return None


@dataclass(frozen=True)
class Verdict:
    """What a check of the machine found."""

    cordoned: list[Cordon]
    """Slots that are left out now because of it."""
    problems: list[str]
    """Faults that no slot can be blamed for."""


class SlotKeeper:
    """The slots of a run, and what is known of failures so far. Its process has no threads and no CUDA context."""

    def __init__(self, run: RunDir, recipe: Recipe, renew: Callable[[], None]) -> None:
        """`renew`: called several times a second within a check."""
        self._run, self._recipe, self._renew = run, recipe, renew
        self._list = CordonList(run.cordon)
        self._device = choose_device(recipe.train.device).type
        self._cores = sorted(os.sched_getaffinity(0))
        self._known = torch.cuda.device_count() if self._device == "cuda" else len(self._cores)
        self._before: tuple[int, str] | None = None
        self.repeated = False
        """Whether the newest failure is the one before: of the same step, in the same way."""

    @property
    def slots(self) -> list[int]:
        """Slots that ranks may have."""
        out = self._list.slots()
        return [slot for slot in range(self._known) if slot not in out]

    def world(self) -> int:
        """Ranks of the next generation. Raises HardwareError where no slot is left, or the run needs them all."""
        ranks, slots = self._recipe.parallel.world, self.slots
        axes = axis_ranks(self._recipe.parallel)
        others = [name for name, size in axes.items() if size > 1 and name != "parallel.data"]
        if slots and self._device == "cpu":
            _stay_on({self._cores[slot] for slot in slots})
        if slots and (self._known < ranks or len(slots) >= ranks):  # more ranks than slots share them anyway
            return ranks
        if not slots or others or self._recipe.parallel.replicas > 1:
            why = f"{' and '.join(others) or 'replicas'} need them all" if slots else "no slot is left"
            raise HardwareError(
                f"slots that failed a check are left out ({self._run.cordon}), and {why}: replace the hardware, or "
                f"`hornbook doctor {quoted(self._run.path)} --uncordon`"
            )
        return next(n for n in range(len(slots), 0, -1) if self._recipe.train.num_microbatches % n == 0)

    def devices(self, ranks: int) -> list[int]:
        """Number of the device of each rank of this machine."""
        return self.slots[:ranks] if self._device == "cuda" and len(self.slots) >= ranks else list(range(ranks))

    def note(self, failure: Failure) -> None:
        """Take note of a failure: is it the one before?"""
        mark = signature(failure)
        self.repeated = mark is not None and mark == self._before
        self._before = mark

    def asks_for_check(self, failure: Failure) -> bool:
        """Whether the machine is to be checked before a restart."""
        crashed = any(number.name in failure.cause for number in CRASHES)
        faulty = failure.report is not None and failure.report.kind in _FAULTY
        return self.repeated or crashed or faulty

    def accused(self, failure: Failure, ranks: int) -> list[SlotFault]:
        """The slot of the rank that computing again has named alone, if that ended the ranks: no check may find it.

        Ranks on a CPU have no slot of their own: of them only the check says which core it is.
        """
        if failure.report is None or failure.report.kind != FaultyRankError.__name__ or self._device != "cuda":
            return []
        audits = [each for each in read_records(self._run.events) if each["kind"] == "audit"]
        mine = bool(audits) and (audits[-1]["step"], audits[-1]["found"]) == (failure.status.step, "persistent")
        if (
            not mine or len(audits[-1]["ranks"]) != 1 or len(self.slots) < ranks
        ):  # rank 0 may have ended before its note
            return []
        return [SlotFault(self.devices(ranks)[audits[-1]["ranks"][0]], "computing again", failure.report.text)]

    def check(self, attempt: int, accused: Sequence[SlotFault] = ()) -> Verdict:
        """Check the slots that ranks have; those that fail, and the accused, are left out from now on."""
        _stay_on({*self._cores})  # the check of a slot takes the core of its number among all
        reports = check_slots(self.slots, self._device, CHECK_BYTES, self._renew)
        faults, problems = judge(reports)
        faults += [each for each in accused if each.slot not in {fault.slot for fault in faults}]
        self._keep(attempt, reports)
        return Verdict(self._list.add(faults) if faults else [], [each.text for each in problems])

    def _keep(self, attempt: int, reports: Sequence[SlotReport]) -> None:
        folder = self._run.incidents / str(attempt)
        self._run.incidents.mkdir(exist_ok=True)  # without parents: a run that was moved is not made anew
        folder.mkdir(exist_ok=True)
        write_atomic(folder / "machine.json", json.dumps([asdict(each) for each in reports], indent=1) + "\n")


def _stay_on(cores: set[int]) -> None:
    """Bind this process, and the forks that follow, to cores."""
    if os.sched_getaffinity(0) != cores:
        os.sched_setaffinity(0, cores)


def signature(failure: Failure) -> tuple[int, str] | None:
    """(step, how) of a failure, equal for the same one; None for a kill or a stop from outside, and a lost tier."""
    if failure.report is not None:
        kind = failure.report.kind
        return None if failure.report.by_peer or kind == UntrustedCopyError.__name__ else (failure.status.step, kind)
    crash = next((number.name for number in CRASHES if number.name in failure.cause), None)
    if crash is None and "silent" in failure.cause and "stopped" not in failure.cause:
        crash = f"silent in {failure.status.phase}"
    return None if crash is None else (failure.status.step, crash)


def with_world(resolved: Resolved, ranks: int) -> Resolved:
    """The recipe of a data-parallel run with another number of ranks."""
    return override(
        resolved, [Source({"parallel": {"data": Given(ranks, f"{ranks} slots of this machine are sound")}})]
    )
