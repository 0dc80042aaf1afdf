"""Measures the step of a recipe with the run's own loop: seconds by phase, memory by category, energy.

A step that would take too long is measured with fewer microbatches: what each microbatch pays is then multiplied, what
a step pays once is not, and the result says so.
"""

import math
import statistics
import tempfile
import time
from typing import Any

import torch

from hornbook.errors import DoesNotFitError
from hornbook.files.run_directory import RunDir
from hornbook.model.config.flops import StepOperations, step_operations
from hornbook.optim.config.batch_schedule import NoRamp
from hornbook.parallel.traffic.step_clock import PHASES
from hornbook.parallel.world import AXES, RankInfo, World, distributed
from hornbook.progress import size_text
from hornbook.run.checkpoints.state import State
from hornbook.run.diagnose.bench.step_memory import MemoryMeter
from hornbook.run.diagnose.estimate import least_bytes
from hornbook.run.job.job import Job, Start, silent_job
from hornbook.run.job.run_inputs import Inputs
from hornbook.run.ledger.interventions import Course
from hornbook.run.ledger.step_report import Step
from hornbook.run.ledger.training_length import TrainingLength, training_length
from hornbook.run.loop.training_loop import build_state, take_step
from hornbook.run.machine.energy import EnergyMeter
from hornbook.run.machine.process_memory import free_memory
from hornbook.run.machine.rates import measure_collectives

WARM_UP = 2
"""Steps of one microbatch before anything counts: kernels are loaded, moments written, pages touched."""
STEPS = 5
"""Steps of which the medians are taken."""
ENDLESS = 1 << 50
"""Tokens of a run that does not end."""


def measure_step(inputs: Inputs, seconds: float, rank_info: RankInfo | None = None) -> dict[str, Any]:
    """The bill of a step, on this rank of the recipe's; `seconds`: time for the measured steps together.

    Raises DoesNotFitError where weights, gradients and moments alone are more than the free memory.
    """
    recipe = inputs.recipe
    with distributed(recipe.parallel, recipe.train, rank_info) as world, tempfile.TemporaryDirectory() as folder:
        _refuse_oversize(inputs, world)
        memory = MemoryMeter(world.device)
        state = build_state(inputs, recipe.parallel, world)
        state.fill(inputs.initial_values())
        collectives = measure_collectives(world)
        bench = _Bench(silent_job(inputs, RunDir(folder), Start(quiet=True)), state, world)
        for _ in range(WARM_UP):
            bench.step(1)
        count = bench.affordable(bench.step(1).seconds, seconds)
        bench.step(count)
        memory.start()
        meter = EnergyMeter(world.device)
        begun = time.perf_counter()
        steps = [bench.step(count) for _ in range(STEPS)]
        wall = time.perf_counter() - begun
        energy = meter.stop()
        return {
            **bench.bill(steps, wall, count),
            "energy": energy,
            "memory": memory.stop(state, bench.forward_once),
            "collectives": collectives,
        }


class _Bench:
    """Steps of any number of microbatches of one state."""

    def __init__(self, job: Job, state: State, world: World) -> None:
        self._job, self._state, self._world = job, state, world
        train = job.recipe.train
        self._rows = train.micro_rows * world.data_size
        self.whole = max(math.ceil(train.batch_tokens / train.sequence / self._rows), 1)
        """Microbatches of each rank in a whole step."""

    def step(self, microbatches: int) -> Step:
        """One step of the loop of a run."""
        return take_step(self._job, self._state, Course(self._job.inputs.resolved, self._length(microbatches)))

    def _length(self, microbatches: int) -> TrainingLength:
        train = self._job.recipe.train
        tokens = microbatches * self._rows * train.sequence
        tokens = min(tokens, math.ceil(train.batch_tokens / train.sequence) * train.sequence)
        changes = {"tokens": ENDLESS, "epochs": None, "batch_tokens": tokens, "ramp": NoRamp()}
        return training_length(train.model_copy(update=changes), lambda _: 0)

    def affordable(self, one: float, seconds: float) -> int:
        """Microbatches of a step such that all measured steps take `seconds`, by rank 0's clock; `one`: time of one."""
        most = int(seconds / max(one * (STEPS + 1), 1e-9))
        return self._world.broadcast(min(max(most, 1), self.whole))

    def forward_once(self) -> None:
        """The forward and backward pass of a microbatch."""
        batch = self._state.loader.take(self._rows, self._world.data_rank, self._world.data_size)
        self._state.engine.zero_gradients()
        self._state.engine.forward_backward(batch.batches, batch.total_weight, key=(0, 0))

    def bill(self, steps: list[Step], wall: float, count: int) -> dict[str, Any]:
        """The step of median time on rank 0; seconds by phase are means over the ranks, and add up to its time."""
        times = [step.seconds for step in steps]
        chosen = steps[self._world.broadcast(times.index(statistics.median_low(times)))]
        own = [chosen.phases[name] for name in PHASES]
        own.append(max(chosen.seconds - sum(own), 0.0))
        ranks = self._world.all_gather(torch.tensor([own], dtype=torch.float64), AXES)
        by_rank = [dict(zip((*PHASES, "host"), each[0].tolist(), strict=True)) for each in ranks]
        return {
            "microbatches": self.whole,
            "measured_microbatches": count,
            "step_tokens": chosen.step_tokens,
            "positions": [self._world.data_size * each for each in chosen.positions],
            "seconds": chosen.seconds,
            "communication": chosen.traffic.record() if self._world.size > 1 else None,
            "spread": (max(times) - min(times)) / chosen.seconds / 2,
            "phases": {name: statistics.mean(rank[name] for rank in by_rank) for name in by_rank[0]},
            "between_steps": max(wall / len(steps) - statistics.mean(times), 0.0),
            "by_rank": by_rank,
        }


def operations_of(inputs: Inputs, positions: list[int]) -> StepOperations:
    """Operations of a measured step."""
    recipe = inputs.recipe
    pair = (positions[0], positions[1])
    return step_operations(recipe.model, inputs.vocab, recipe.train.sequence, pair, recipe.parallel.recompute)


def whole_step(bill: dict[str, Any], shard: str) -> dict[str, float]:
    """Seconds by phase of a step of all microbatches, from one of `measured_microbatches`.

    The optimizer works once a step. Gradients cross ranks once, under `parallel.shard` gradients and everything for
    each microbatch. All else is paid by each microbatch; the host's share too, which is an upper bound.
    """
    times = bill["microbatches"] / bill["measured_microbatches"]
    once = {"optimizer"} | ({"communication"} if shard in ("none", "optimizer") else set())
    return {name: seconds * (1.0 if name in once else times) for name, seconds in bill["phases"].items()}


def _refuse_oversize(inputs: Inputs, world: World) -> None:
    least, free = least_bytes(inputs), free_memory(world.device)
    ranks = world.size if world.device.type == "cpu" else 1
    if least * ranks > free:
        among = f" on each of {ranks} ranks" if ranks > 1 else ""
        raise DoesNotFitError(
            f"weights, gradients and moments of this recipe need {size_text(least)}{among}, and {size_text(free)} are "
            "free: measure a part of it (--model.layers 2), another optimizer, or a larger machine"
        )
