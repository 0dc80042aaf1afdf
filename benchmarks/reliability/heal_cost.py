"""What healing costs while nothing is wrong: copies in memory, hashes of replicas, audits.

    python -m benchmarks.reliability.heal_cost

Two ranks train a model of the recipe `tiny` at a width of 256. Steps of four kinds take turns: a plain one, one with a
copy of the state in memory, one with a comparison of the replicas, one with an audit of a microbatch. What an act costs
is the median over the turns of its step's time less that of the plain step beside it, on rank 0; per step it is that
over the steps between two acts.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from hornbook.files.run_directory import RunDir
from hornbook.optim.config.batch_schedule import NoRamp
from hornbook.parallel.world import RankInfo, distributed
from hornbook.run.checkpoints.memory_copies import CopyMemory
from hornbook.run.diagnose.bench.synthetic import write_synthetic
from hornbook.run.diagnose.bench.worker import on_ranks
from hornbook.run.job.inputs import Inputs, compile_for, open_inputs
from hornbook.run.job.job import Start, silent_job
from hornbook.run.ledger.interventions import Course
from hornbook.run.ledger.training_length import training_length
from hornbook.run.loop.recompute import Recompute
from hornbook.run.loop.train import build_state, take_step
from hornbook.run.machine.precision import settle_precision
from hornbook.run.observe.replicas import ReplicaCheck
from hornbook.settings.resolve import Resolved, resolve

SETTINGS = {
    "model.layers": 4,
    "model.width": 256,
    "model.heads": 4,
    "train.batch_tokens": 8192,
    "train.sequence": 256,
    "train.micro_batch": 4,
    "train.threads": 1,
    "train.tokens": 1_000_000,
    "train.device": "cpu",
    "parallel.data": 2,
    "guard.audit_every": 1,
}
EVERY = {"copy": 50, "hash": 50, "audit": 1000}
"""Steps between two acts, for the cost of a step."""


def measure(inputs: Inputs, memory: CopyMemory, turns: int, rank_info: RankInfo) -> dict[str, Any]:
    """Seconds of the steps of each kind, on one rank."""
    recipe = inputs.recipe
    with distributed(recipe.parallel, recipe.train, rank_info) as world, tempfile.TemporaryDirectory() as folder:
        state = build_state(inputs, recipe.parallel, world)
        state.fill(inputs.initial_values())
        job = silent_job(inputs, RunDir(folder), Start(quiet=True))
        endless = recipe.train.model_copy(update={"tokens": 1 << 50, "epochs": None, "ramp": NoRamp()})
        course = Course(inputs.resolved, training_length(endless, lambda _: 0))
        check, again = ReplicaCheck(1, world, job.ledger, print), Recompute(job, state, print)
        copies = memory.of_rank(rank_info.rank)
        size = copies.missing_bytes(state.tensors())
        acts = {
            "plain": lambda: None,
            "copy": lambda: copies.write(state.step, state.counters(), state.tensors()),
            "hash": lambda: check.compare_if_due(state, saving=True),
            "audit": lambda: None,
        }
        seconds: dict[str, list[float]] = {name: [] for name in acts}
        for turn in range(turns + 1):
            for name, act in acts.items():
                world.barrier()
                begun = time.perf_counter()
                take_step(job, state, course, again if name == "audit" else None)
                act()
                if turn:  # the first turn loads kernels and gets the memory
                    seconds[name].append(time.perf_counter() - begun)
        return {"seconds": seconds, "bytes": size, "parameters": inputs.parameters}


def figures(found: dict[str, Any]) -> dict[str, object]:
    """What goes into the file of results."""
    seconds = found["seconds"]
    plain = statistics.median(seconds["plain"])
    costs = {}
    for name, every in EVERY.items():
        more = statistics.median(mine - beside for mine, beside in zip(seconds[name], seconds["plain"], strict=True))
        costs[name] = {"seconds": more, "every": every, "share_of_step": more / every / plain}
    sizes = {"parameters": found["parameters"], "copies_bytes": found["bytes"]}
    return {"step_seconds": plain, "turns": len(seconds["plain"]), **sizes, "costs": costs}


def run(turns: int = 20) -> bool:
    """Measure, print, write results/heal_cost.json; whether each costs at most 1 % of a step."""
    recipe = resolve("tiny", [f"{key}={value}" for key, value in SETTINGS.items()], environ={}).recipe
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_synthetic(recipe, Path(folder) / "data")
        inputs = open_inputs(settle_precision(Resolved(recipe, {})))
        compile_for(inputs)
        result = figures(on_ranks(2, measure, inputs, CopyMemory(2), turns))
        inputs.loader.close()
    print(result)
    report.write("heal_cost", result)
    costs = result["costs"]
    assert isinstance(costs, dict)
    return all(each["share_of_step"] <= 0.01 for each in costs.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="what copies, hashes and audits cost")
    parser.add_argument("--turns", type=int, default=20)
    raise SystemExit(0 if run(parser.parse_args().turns) else 1)
