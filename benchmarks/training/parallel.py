"""Does training on many ranks equal training in one process? And what do sums with fixed bits cost?

    python -m benchmarks.training.parallel

Every layout on 1 to 4 ranks (forked processes of one thread), 20 steps of a tiny model with dropout, clipping that
bites, microbatches of unequal weight and tied weights, against one process. float64 shows whether the arithmetic is
the same: limit 1e-9 relative in losses, norms and final weights. In float32 losses stay within 1e-5. In bf16 the
limit is three times the difference that two orders of the same microbatches make in one process: the opposite order,
or the tree of the exact mode. The exact mode must give equal bits; its time is compared with the plain mode's,
interleaved, on a larger model.
"""

import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import report
from tests.parallel.trajectory import LAYOUTS, Difference, Precision, Result, Run, compare, perform, same_bits
from tests.ranks import RankServer

WORLDS = {layout: (4,) if layout == "hybrid" else (1, 2, 3, 4) for layout in LAYOUTS}
CASES = [*((layout, world, True) for layout in LAYOUTS for world in WORLDS[layout]), ("everything", 4, False)]
"""Layout, ranks, tied weights."""
EXACT = [("none", 2), ("none", 4), ("everything", 2), ("everything", 4), ("hybrid", 4)]
COSTS = [("none", 1), ("none", 2), ("everything", 2)]
"""No more ranks than a small machine has cores."""
COST_RUN = Run(width=256, sequence=128, steps=3)
ROUNDS = 8
FIGURES = ("losses", "norms", "weights")
Performer = Callable[[Run], Result]


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    precision: str
    layout: str
    world: int
    tied: bool
    difference: Difference
    kept: bool
    """Whether every difference that has a limit is within it."""


def parity(do: Performer, limits: dict[Precision, dict[str, float]]) -> list[Row]:
    """The table: every layout and number of ranks in every precision."""
    rows = []
    for precision, limit in limits.items():
        references = {tied: do(Run(precision=precision, tied=tied)) for tied in (True, False)}
        for layout, world, tied in CASES:
            found = do(Run(world, **LAYOUTS[layout], precision=precision, tied=tied))
            difference = compare(found, references[tied])
            kept = all(asdict(difference)[name] <= most for name, most in limit.items())
            rows.append(Row(precision, layout, world, tied, difference, kept))
    return rows


def limits_of(orders: dict[str, Difference]) -> dict[Precision, dict[str, float]]:
    """By precision and figure."""
    bf16 = {name: 3 * max(asdict(each)[name] for each in orders.values()) for name in FIGURES}
    return {"fp64": dict.fromkeys(FIGURES, 1e-9), "fp32": {"losses": 1e-5}, "bf16": bf16}


def orders_of(do: Performer, precision: Precision) -> dict[str, Difference]:
    """How far two orders of the same microbatches are apart in one process."""
    forward = Run(precision=precision)
    expected = do(forward)
    return {
        "opposite": compare(do(replace(forward, backwards=True)), expected),
        "tree": compare(do(replace(forward, exact=True)), expected),
    }


def equal_bits(do: Performer) -> list[dict[str, Any]]:
    """In exact mode: whether losses, norms and weights are those of one process, to the bit."""
    rows = []
    for layout, world in EXACT:
        run = Run(world, **LAYOUTS[layout], exact=True)
        rows.append({"layout": layout, "world": world, "equal": same_bits(do(run), do(run.alone))})
    return rows


def costs(do: Performer) -> list[dict[str, Any]]:
    """Time of a step, plain and exact in turn: the best seconds, and processor seconds of all ranks together."""
    rows = []
    for layout, world in COSTS:
        plain, exact = [], []
        for _ in range(ROUNDS):
            for results, run in ((plain, COST_RUN), (exact, replace(COST_RUN, exact=True))):
                results.append(do(replace(run, world=world, **LAYOUTS[layout])))
        row: dict[str, Any] = {"layout": layout, "world": world}
        for name, results in (("plain", plain), ("exact", exact)):
            row[f"{name}_seconds"] = min(seconds for result in results for seconds in result.seconds)
            row[f"{name}_cpu_seconds"] = statistics.median(cpu for result in results for cpu in result.cpu_seconds)
        row["ratio"] = row["exact_seconds"] / row["plain_seconds"]
        row["cpu_ratio"] = row["exact_cpu_seconds"] / row["plain_cpu_seconds"]
        rows.append(row)
    return rows


def measure(do: Performer) -> dict[str, Any]:
    """All figures."""
    orders = orders_of(do, "bf16")
    limits = limits_of(orders)
    rows, equal = parity(do, limits), equal_bits(do)
    return {
        "steps": Run.steps,
        "limits": limits,
        "orders": {name: asdict(each) for name, each in orders.items()},
        "rows": [asdict(row) for row in rows],
        "exact": equal,
        "cost": costs(do),
        "kept": all(row.kept for row in rows) and all(row["equal"] for row in equal),
    }


def run() -> bool:
    """Measure all, print the tables, write results/parallel.json; whether every limit is kept."""
    server, number = RankServer(), itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(lambda run: perform(server, run, Path(folder) / str(next(number)), limit=300.0))
        finally:
            server.close()
    header = ("precision", "layout", "ranks", "tied", *FIGURES, "kept")
    print(report.table(header, [flat(row) for row in found["rows"]]))
    print(report.table(("exact", "ranks", "equal bits"), [list(row.values()) for row in found["exact"]]))
    print(report.table(list(found["cost"][0]), [list(row.values()) for row in found["cost"]]))
    print(f"written: {report.write('parallel', found)}")
    return found["kept"]


def flat(row: dict[str, Any]) -> list[object]:
    """The cells of a row of the table."""
    return [
        row["precision"],
        row["layout"],
        row["world"],
        row["tied"],
        *(row["difference"][name] for name in FIGURES),
        row["kept"],
    ]


if __name__ == "__main__":
    sys.exit(0 if run() else 1)
