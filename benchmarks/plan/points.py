"""The planner against published measurements: errors in memory and time by source.

    HORNBOOK_POINTS=FILE[:FILE] python -m benchmarks.plan.points [--fit] [--worst N] [FILE...]

A file has `points`: hardware, model, layout, batch, precision, recompute and what was measured, each with its source;
the files are not part of the repository. `--fit` looks for the shares of `plan/calibration.toml` that make the median
error in time least, for each kind of GPU on the points marked `core`, and prints them; the other points are held out.
"""

import argparse
import json
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plan.published import Published, published
from benchmarks.report import table, write
from hornbook.plan.memory import estimate_memory
from hornbook.plan.rates import Shares, shares_of
from hornbook.plan.step import estimate_step

FACTORS = (0.8, 0.9, 0.96, 1.04, 1.1, 1.25)
"""Steps of the search for shares."""
LIMITS = {"products": (0.3, 0.95), "narrow": (0.2, 0.9), "attention": (0.1, 0.9)}
LIMITS |= {"bandwidth": (0.3, 0.95), "link": (0.2, 0.95), "network": (0.1, 0.95)}


@dataclass(frozen=True)
class Error:
    """Predicted over measured, as a logarithm."""

    point: Published
    time: float | None
    memory: float | None


def judge(point: Published, shares: Shares | None = None) -> Error:
    """The errors of one point."""
    time = memory = None
    if point.seconds is not None:
        step = estimate_step(point.recipe, point.vocab, point.cluster, point.traffic, shares)
        time = math.log(step.total / point.seconds)
    if point.memory is not None and shares is None:
        memory = math.log(peak_bytes(point, by_driver=point.by_driver) / point.memory)
    return Error(point, time, memory)


def peak_bytes(point: Published, *, by_driver: bool) -> int:
    """What the fullest device holds; by_driver: with what the driver sees beside torch's."""
    found = estimate_memory(point.recipe, point.vocab, point.cluster.device, point.holding)
    return max(each.peak.total - (0 if by_driver else each.peak.runtime) for each in found)


def middle(values: Iterable[float | None]) -> tuple[int, float, float, float]:
    """(number, median error, 90th percentile, median with its sign), errors as shares."""
    known = [each for each in values if each is not None]
    if not known:
        return 0, math.nan, math.nan, math.nan
    sizes = sorted(math.expm1(abs(each)) for each in known)
    tenth = sizes[min(math.ceil(0.9 * len(sizes)) - 1, len(sizes) - 1)]
    return len(known), statistics.median(sizes), tenth, math.expm1(statistics.median(known))


def fit(points: Sequence[Published]) -> dict[str, Shares]:
    """Shares for each kind of GPU that make the median error of its core points least."""
    kinds = defaultdict(list)
    for point in points:
        if point.core and point.seconds is not None:
            kinds[point.cluster.device.name].append(point)
    return {name: _fit_one(chosen) for name, chosen in kinds.items() if len(chosen) >= 4}


def _fit_one(points: Sequence[Published]) -> Shares:
    best = shares_of(points[0].cluster.device)
    least = _loss(points, best)
    for _ in range(3):
        before = least
        for name, (low, high) in LIMITS.items():
            for factor in FACTORS:
                value = round(min(max(getattr(best, name) * factor, low), high), 3)
                tried = best.model_copy(update={name: value})
                if (loss := _loss(points, tried)) < least - 1e-4:
                    best, least = tried, loss
        if least > before - 1e-3:
            break
    return best


def _loss(points: Sequence[Published], shares: Shares) -> float:
    """Mean absolute error by source, each source counting as the root of its points."""
    sources = defaultdict(list)
    for point in points:
        sources[point.source].append(abs(judge(point, shares).time or 0.0))
    weights = {name: math.sqrt(len(errors)) for name, errors in sources.items()}
    return sum(weights[name] * statistics.fmean(errors) for name, errors in sources.items()) / sum(weights.values())


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
            count, median, tenth, sign = middle(getattr(each, what) for each in rows)
            if count:
                entry[what] = {"points": count, "median": median, "p90": tenth, "bias": sign}
        found[name] = entry
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    named = [Path(each) for each in os.environ.get("HORNBOOK_POINTS", "").split(":") if each]
    files = options.files or named
    if not files:
        parser.error("name the files of points, or set HORNBOOK_POINTS")
    raw = [each for path in files for each in json.loads(path.read_text(encoding="utf-8"))["points"]]
    points, skipped = published([each for each in raw if options.only in each["id"]])
    print(f"{len(points)} of {len(raw)} points; left out: {dict(skipped)}")
    if options.fit:
        for name, shares in fit(points).items():
            print(f'["{name}"]', *(f"{key} = {value}" for key, value in shares), "", sep="\n")
        return
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
