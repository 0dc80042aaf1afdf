"""The planner against published measurements: errors in memory and time by source.

    HORNBOOK_POINTS=FILE[:FILE] python -m benchmarks.plan.points [--worst N] [FILE...]

A file has `points`: hardware, model, layout, batch, precision, recompute and what was measured, each with its source;
the files are not part of the repository. Times are those of `calibration.toml`, which is fitted on the same
points; `benchmarks.plan.timing` holds sources out.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plan.published import Published, published
from benchmarks.plan.timing import read_points, spread
from benchmarks.report import table, write
from hornbook.plan.planned_memory import estimate_memory
from hornbook.plan.step_time import estimate_step


@dataclass(frozen=True)
class Error:
    """Predicted over measured, as a logarithm."""

    point: Published
    time: float | None
    memory: float | None


def judge(point: Published) -> Error:
    """The errors of one point."""
    time = memory = None
    if point.seconds is not None:
        step = estimate_step(point.recipe, point.vocab, point.cluster, point.trainer)
        time = math.log(step.total / point.seconds)
    if point.memory is not None:
        memory = math.log(peak_bytes(point, by_driver=point.by_driver) / point.memory)
    return Error(point, time, memory)


def peak_bytes(point: Published, *, by_driver: bool) -> int:
    """What the fullest device holds; by_driver: with what the driver sees beside torch's."""
    found = estimate_memory(point.recipe, point.vocab, point.cluster.device, point.holding)
    return max(each.peak.total - (0 if by_driver else each.peak.runtime) for each in found)


def report(errors: Sequence[Error]) -> dict[str, Any]:
    """Errors by source, and over all of them."""
    groups: dict[str, list[Error]] = defaultdict(list)
    for each in errors:
        groups[each.point.source].append(each)
    groups["all"] = list(errors)
    groups["all, held out"] = [each for each in errors if not each.point.core]
    found = {}
    for name, rows in groups.items():
        entry = {}
        for what in ("time", "memory"):
            if known := [getattr(each, what) for each in rows if getattr(each, what) is not None]:
                entry[what] = spread(known)
        found[name] = entry
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    raw = read_points(options.files, parser.error)
    points, skipped = published([each for each in raw if options.only in each["id"]])
    print(f"{len(points)} of {len(raw)} points; left out: {dict(skipped)}")
    errors = [judge(point) for point in points]
    found = report(errors)
    rows: list[list[object]] = []
    header = ["source", "time: points", "median", "p90", "bias", "memory: points", "median", "p90", "bias"]
    for name, entry in found.items():
        cells: list[object] = [name[:60]]
        for what in ("time", "memory"):
            part = entry.get(what)
            cells += (
                ["", "", "", ""]
                if part is None
                else [str(part["points"]), f"{part['median']:.1%}", f"{part['p90']:.1%}", f"{part['bias']:+.1%}"]
            )
        rows.append(cells)
    print(table(header, rows))
    for what in ("time", "memory"):
        known = [each for each in errors if getattr(each, what) is not None]
        for each in sorted(known, key=lambda each: -abs(getattr(each, what)))[: options.worst]:
            print(what, f"{math.expm1(getattr(each, what)):+.0%}", each.point.id, each.point.shape)
    if not options.only:
        out = [each for each in errors if each.point.out_of_memory]
        claims = [
            each.point.id
            for each in out
            if peak_bytes(each.point, by_driver=True) <= each.point.cluster.device.memory_bytes
        ]
        print(f"out of memory: {len(out)} rows, {len(claims)} said to fit {claims}")
        write("plan_points", {"errors": found, "out_of_memory": len(out), "said_to_fit": len(claims)})


if __name__ == "__main__":
    main()
