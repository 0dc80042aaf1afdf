"""`hornbook train RECIPE --world N --rank R --dry-run`: one rank of a large run, built on this machine."""

import os
from typing import TYPE_CHECKING

from hornbook.cli.result import Result
from hornbook.errors import UsageError
from hornbook.progress import progress_bar, size_text

if TYPE_CHECKING:
    from hornbook.run.diagnose.simulate import Simulation
    from hornbook.settings.resolve import Resolved


def simulate_rank(resolved: "Resolved", world: int | None, rank: int) -> Result:
    """Memory by category and collectives of a step of one rank; nothing is computed, and no data is read."""
    from hornbook.run.diagnose.simulate import simulate
    from hornbook.run.launch.settle import settle_ranks
    from hornbook.run.start.micro_batch import settle_micro_batch, vocabulary_rows
    from hornbook.run.start.precision import settle_precision

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
