"""One rank of a large run on fake tensors: `hornbook train RECIPE --world N --rank R --dry-run`, `plan --verify`."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hornbook.cli.result import Result, columns
from hornbook.errors import UsageError
from hornbook.plan.devices.hardware import this_cpu
from hornbook.plan.planned_memory import estimate_memory
from hornbook.plan.planner import Layout
from hornbook.progress import progress_bar, size_text
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved

if TYPE_CHECKING:
    from hornbook.run.diagnose.simulate import Simulation


def simulate_rank(resolved: Resolved, world: int | None, rank: int) -> Result:
    """Memory by category and collectives of a step of one rank; nothing is computed, and no data is read."""
    from hornbook.run.diagnose.simulate import simulate
    from hornbook.run.job.micro_batch import settle_micro_batch, vocabulary_rows
    from hornbook.run.launch.settle import settle_ranks
    from hornbook.run.machine.choose_dtype import settle_precision

    if not vocabulary_rows(resolved.recipe):
        raise UsageError("the size of the vocabulary is that of the data: give --model.vocab N, or --data DATA")
    resolved = settle_micro_batch(settle_precision(settle_ranks(resolved, os.environ, world)))
    with progress_bar() as progress:
        progress("build one rank", 0, None)
        found = simulate(resolved.recipe, vocabulary_rows(resolved.recipe), rank)
    return Result(found.to_json(), simulation_text(found))


def simulation_text(found: "Simulation") -> str:
    """The text of a simulation."""
    where = ", ".join(f"{axis} {number} of {size}" for axis, (number, size) in found.axes.items())
    times = "microbatch" if found.microbatches == 1 else "microbatches"
    lines = [
        f"rank         {found.rank} of {found.world}{f': {where}' if where else ''}",
        f"parameters   {found.parameters:,} on this rank",
        f"state        {', '.join(f'{name} {size_text(size)}' for name, size in found.state.items())}",
        f"memory       {size_text(found.peak)} at the peak of a step of {found.microbatches:,} {times}:",
        *(f"             {size_text(size):>9}  {name}" for name, size in found.memory.items() if size),
    ]
    for number, row in enumerate(found.collectives):
        over = f"{' + '.join(row.axes)} ({row.ranks} ranks)"
        sent = f"{size_text(row.num_bytes)}, of which this rank sends {size_text(row.sent)}"
        head = "collectives" if number == 0 else ""
        lines.append(f"{head:<13}{row.count:>6,} {row.kind:<14} over {over}: {sent}")
    lines += ["collectives  none"] if not found.collectives else []
    lines += [f"note         {text}" for text in found.notes]
    return "\n".join([*lines, f"built in     {found.seconds:.1f} s; nothing was computed"])


# ---- A plan against a trace


@dataclass(frozen=True)
class Traced:
    """The memory of a layout's fullest rank as planned and as traced, bytes by category."""

    layout: str
    rank: int
    rows: list[tuple[str, int, int]]
    """(category, planned, traced)."""
    notes: list[str]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """The object that `--json` prints."""
        rows = [{"category": name, "planned": planned, "traced": traced} for name, planned, traced in self.rows]
        return {"layout": self.layout, "rank": self.rank, "rows": rows, "notes": self.notes, "seconds": self.seconds}


def trace_layout(recipe: Recipe, vocab: int, layout: Layout) -> Traced:
    """A layout of a plan against a step of its fullest rank on fake tensors; recipe: with a known precision.

    What is planned is counted for such a step too: the layout's figures for a GPU with compiled or fused parts, or for
    kernels of a CPU, differ from it by what the parts say they keep. Raises UsageError for what a trace cannot foresee.
    """
    from hornbook.run.diagnose.simulate import foreseeable, simulate

    train = recipe.train.model_copy(update={"micro_batch": layout.micro_batch})
    recipe = recipe.model_copy(update={"parallel": layout.parallel, "train": train})
    recipe, _ = foreseeable(recipe, vocab)
    stages = recipe.parallel.pipeline.stages
    planned = estimate_memory(recipe, vocab, this_cpu(), traced=True)
    worst = max(planned, key=lambda each: each.peak.total)
    rank = worst.rank * (recipe.parallel.world // stages)  # the pipeline is the outermost axis
    found = simulate(recipe, vocab, rank)
    peak, complete = worst.peak, worst.phases["update"]
    shard = recipe.parallel.shard
    gathered = found.memory["gathered weights"] if shard in ("optimizer", "gradients") else 0  # whole beside their part
    rows = [
        ("weights", complete.weights, found.state["weights"] + gathered),
        # With `optimizer` they are whole until the last microbatch, and a part is left when they are complete.
        *([("gradients", complete.gradients, found.state["gradients"])] if shard != "optimizer" else []),
        ("optimizer", complete.optimizer, found.state["moments"]),
        ("activations", worst.kept, found.kept),
        ("peak", peak.total - peak.runtime, found.peak),
    ]
    return Traced(layout.name, rank, rows, found.notes, found.seconds)


def traced_text(found: Traced) -> str:
    """The table of `hornbook plan --verify`."""
    rows = [["category", "planned", "traced", "difference"]]
    for name, planned, traced in found.rows:
        share = f"{planned / traced - 1:+.1%}" if traced else ""
        rows.append([name, size_text(planned), size_text(traced), share if planned != traced else "equal"])
    head = f"{found.layout}: a step of rank {found.rank} on fake tensors, in {found.seconds:.1f} s"
    return "\n".join([head, columns(rows), *(f"note: {text}" for text in found.notes)])
