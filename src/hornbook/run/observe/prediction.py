"""The plan of a run's own layout, `plan.json`, and at the run's end how far memory and time of a step were from it.

What the run measured goes where `hornbook bench` keeps its measurements: later plans on this machine follow it.
"""

import os
import statistics
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from hornbook.errors import StorageError
from hornbook.files.durable import write_atomic
from hornbook.parallel.world import World
from hornbook.plan.devices.hardware import Cluster, device_of_driver, this_cpu
from hornbook.plan.devices.measured import run_file
from hornbook.plan.planner import plan_own
from hornbook.plan.search.anchored_plan import LEAST_STEPS, RunMeasured, anchored, step_recipe
from hornbook.plan.search.plan_result import Plan
from hornbook.run.job.job import Job
from hornbook.run.ledger.ledger import Position
from hornbook.run.ledger.step_report import Step
from hornbook.run.machine.process_memory import memory_of
from hornbook.run.machine.saved import device_name
from hornbook.run.observe.console import Console

WARM_UP = 3
"""First steps of an attempt that are not timed: kernels are loaded, pages touched."""
NEWEST = 1000
"""Steps whose median counts."""
GIB = 2**30


@dataclass(frozen=True)
class Outcome:
    """What a run measured."""

    seconds: float
    """Of a step, the median."""
    steps: int
    peak_bytes: int
    """Most that a rank held."""


class Prediction:
    """Observer on every rank; rank 0's writes and shows. Nothing that goes wrong here stops a run."""

    def __init__(self, job: Job, world: World, consoles: Sequence[Console]) -> None:
        self._job, self._world, self._consoles = job, world, consoles
        self._plan: Plan | None = None
        self._passed = 0
        self._seconds = array("d")

    def start(self) -> None:
        """Write plan.json, before the first step; nothing for a device or a part that the planner does not know."""
        if not self._job.output.is_rank0:
            return
        with suppress(Exception):  # a plan that cannot be made must not stop a run
            self._plan = plan_here(self._job, self._world)
        if self._plan is not None:
            with suppress(StorageError):
                self._job.output.write_json(self._job.run.plan, self._plan.record())

    def __call__(self, step: Step) -> None:
        """Only whole batches count: a ramp's are smaller."""
        self._passed += 1
        if self._passed > WARM_UP and not step.skipped and step.step_tokens >= self._job.recipe.train.batch_tokens:
            if len(self._seconds) >= NEWEST:
                self._seconds = self._seconds[NEWEST // 2 :]
            self._seconds.append(step.seconds)

    def conclude(self, at: Position) -> None:
        """Show and record predicted against measured. All ranks come here."""
        measured = self._measured()
        if self._plan is None or measured is None or not self._job.output.is_rank0:
            return
        said = self._plan.best
        text = compared(said.worst.peak.total, said.step.total, measured)
        for console in self._consoles:
            console.note(text)
        self._job.ledger.note(
            "plan",
            at,
            text=text,
            predicted_bytes=said.worst.peak.total,
            measured_bytes=measured.peak_bytes,
            predicted_seconds=said.step.total,
            measured_seconds=measured.seconds,
            steps=measured.steps,
            time_factor=self._plan.time_factor,
        )
        self._keep(measured)

    def _measured(self) -> Outcome | None:
        """Of the slowest and of the fullest rank; None after too few steps."""
        own = round(1e9 * statistics.median(self._seconds)) if len(self._seconds) >= LEAST_STEPS else 0
        nanoseconds, peak = self._world.all_reduce_max([own, peak_bytes(self._world.device)])
        return Outcome(nanoseconds / 1e9, len(self._seconds), peak) if nanoseconds else None

    def _keep(self, measured: Outcome) -> None:
        """Where `hornbook bench` keeps its measurements; what cannot be kept is no loss."""
        with suppress(Exception):
            self._write_measured(measured)

    def _write_measured(self, measured: Outcome) -> None:
        recipe = step_recipe(self._job.recipe)
        found = RunMeasured(
            recipe=recipe,
            vocab=self._job.inputs.vocab,
            seconds=measured.seconds,
            peak_bytes=measured.peak_bytes,
            steps=measured.steps,
        )
        file = run_file(device_name(self._world.device), recipe)
        if file is not None and found.counts:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, found.model_dump_json(indent=1) + "\n")


def peak_bytes(device: torch.device) -> int:
    """Most that this process held, of a GPU with what lies outside torch's allocator, such as its context."""
    found = memory_of(device)
    if device.type != "cuda":
        return found.peak
    free, total = torch.cuda.mem_get_info(device)
    return found.peak + max(total - free - found.used, 0)


def plan_here(job: Job, world: World) -> Plan | None:
    """The plan of a run's own layout on its devices; None where they are not known. UsageError as `plan_own`."""
    cluster = cluster_of(world)
    if cluster is None:
        return None
    recipe = job.recipe
    return anchored(plan_own(recipe, job.inputs.vocab, cluster), recipe, cluster)


def cluster_of(world: World) -> Cluster | None:
    """The devices of a run; None for one that `hardware.toml` lacks."""
    name = device_name(world.device)
    if world.device.type == "cpu":
        return Cluster(device=this_cpu(threads=torch.get_num_threads()), count=world.size, machine=name)
    device = device_of_driver(name)
    if device is None:
        return None
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    node = int(here) if here.isdigit() and int(here) else min(world.size, device.node)
    return Cluster(device=device, count=world.size, node=node, machine=name)


def compared(peak_bytes: int, seconds: float, measured: Outcome) -> str:
    """`plan said 61.2 GiB / 1.18 s, run measured 60.7 / 1.22`."""
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3)
    return (
        f"plan said {peak_bytes / GIB:.3g} GiB / {scale * seconds:.3g} {unit}, "
        f"run measured {measured.peak_bytes / GIB:.3g} / {scale * measured.seconds:.3g}"
    )
