"""The planner's times against published runs: cold with sources held out, anchored on one run, ranks of layouts.

    HORNBOOK_POINTS=FILE[:FILE] python -m benchmarks.plan.timing [--calibrate] [--worst N] [FILE...]

fitted: with shares fitted on all points, which `--calibrate` writes to `calibration.toml`. held out: with shares fitted
without the source (a family of tables of one trainer) of the point. anchored: such times, multiplied by measured
over predicted time of one other run of the same source, model, device and setting on the fewest devices that it has:
the nearest one in shape, rows and layout, since who benches one machine benches what he means to run. on one: the same
run for all of them, with the middle number of tokens in a microbatch. The files of points are not part of the
repository.
"""

import argparse
import json
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plan.fit import calibration_text, family, fit, seconds
from benchmarks.plan.published import Published, published
from benchmarks.plan.trainer_time import anchored_only
from benchmarks.report import table, write
from hornbook.model.config.flops import step_operations
from hornbook.plan.devices import device_rates as rates

HEADER = """# What a device reaches of its data sheet (`hardware.toml`): six shares for each kind, fitted by
# `python -m benchmarks.plan.timing --calibrate` on published runs of the sources named; `default` for other kinds.
# products: of the rate of products in 16 bits and fp32; narrow: of those in 8 bits and fewer; attention: of the rate in
# 16 bits; bandwidth: of the memory's; link, network: of the links'.
"""
SEARCHES = ("vTrain", "BLOOM-176B 3D", "torchtitan benchmarks")
"""Sources that measured layouts of a model beside one another."""
CALCULON = 0.0365
"""Mean error of Calculon on Korthikanti's table (Isaev et al. 2023)."""

Errors = Mapping[str, float]
"""Point -> logarithm of predicted over measured time."""


def spread(values: Iterable[float]) -> dict[str, float]:
    """Of errors as shares: how many, median, 90th percentile, mean, median with its sign."""
    known = list(values)
    sizes = sorted(math.expm1(abs(each)) for each in known)
    tenth = sizes[min(math.ceil(0.9 * len(sizes)) - 1, len(sizes) - 1)]
    mean = statistics.fmean(abs(math.expm1(each)) for each in known)
    bias = math.expm1(statistics.median(known))
    return {"points": len(known), "median": statistics.median(sizes), "p90": tenth, "mean": mean, "bias": bias}


def anchored(points: Sequence[Published], times: Mapping[str, float]) -> Errors:
    """Errors of all runs that have another one to be anchored on: the nearest one on the fewest devices."""
    found = dict[str, float]()
    for rows in _groups(points):
        few = _on_fewest(rows)
        for each in rows:
            if others := [other for other in few if other is not each]:
                anchor = min(others, key=lambda other: (_distance(each, other), other.id))
                found[each.id] = _anchored(each, anchor, times)
    return found


def anchored_on_one(points: Sequence[Published], times: Mapping[str, float]) -> Errors:
    """Errors of all runs but the anchors, of which a group has one: the middle one on the fewest devices."""
    found = dict[str, float]()
    for rows in _groups(points):
        few = sorted(_on_fewest(rows), key=_microbatch)
        anchor = few[len(few) // 2]
        found |= {each.id: _anchored(each, anchor, times) for each in rows if each is not anchor}
    return found


def _groups(points: Sequence[Published]) -> Iterable[list[Published]]:
    """Runs of a model by one trainer on one kind of device, which a run of them may anchor."""
    groups = defaultdict[tuple[str, ...], list[Published]](list)
    for each in points:
        groups[each.source, each.model, each.cluster.device.name, each.setting].append(each)
    return groups.values()


def _on_fewest(rows: Sequence[Published]) -> list[Published]:
    fewest = min(each.cluster.count for each in rows)
    return [each for each in rows if each.cluster.count == fewest]


def _anchored(point: Published, anchor: Published, times: Mapping[str, float]) -> float:
    return _error(point, (anchor.seconds or math.nan) / times[anchor.id] * times[point.id])


def _distance(left: Published, right: Published) -> float:
    """How many doublings, or other kinds of sharding and recomputation, lie between what two runs compute."""
    found = sum(abs(math.log2(one / other)) for one, other in zip(_sizes(left), _sizes(right), strict=True))
    one, other = left.recipe.parallel, right.recipe.parallel
    return found + (one.shard != other.shard) + (one.recompute.kind != other.recompute.kind)


def _sizes(point: Published) -> tuple[int, ...]:
    parallel, model = point.recipe.parallel, point.recipe.model
    axes = parallel.tensor, parallel.context.ranks, parallel.expert, parallel.pipeline.stages
    return point.recipe.train.sequence, _microbatch(point), *axes, model.layers, model.width, model.heads


def _microbatch(point: Published) -> int:
    return point.recipe.train.micro_rows * point.recipe.train.sequence


def _error(point: Published, predicted: float) -> float:
    return math.log(predicted / (point.seconds or math.nan))


# ---- Ranks of layouts


def ranking(
    points: Sequence[Published], times: Mapping[str, float], fitted: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Spearman's correlation of each search's layouts, and what the planner's choice takes longer than the best.

    fitted: times by the shares of `calibration.toml`."""
    groups = defaultdict[str, list[Published]](list)
    for each in points:
        if search := next((name for name in SEARCHES if name in each.source), None):
            groups[f"{search}, all"].append(each)
            state = f", {each.state}" if each.state else ""
            if state:
                groups[f"{search}{state}, all"].append(each)
            groups[f"{search}{state}, {each.model}, {each.cluster.count} devices, {_rows(each)} rows"].append(each)
    found = {}
    for name, rows in groups.items():
        if len(rows) < 4 or (name.startswith("torchtitan") and not name.endswith("all")):
            continue
        measured = [_cost(each, each.seconds or math.nan) for each in rows]
        predicted = [_cost(each, times[each.id]) for each in rows]
        chosen = measured[predicted.index(min(predicted))]
        entry = {"layouts": float(len(rows)), "spearman": spearman(measured, predicted)}
        entry["fitted"] = spearman(measured, [_cost(each, fitted[each.id]) for each in rows])
        found[name] = entry if name.endswith("all") else entry | {"regret": chosen / min(measured) - 1}
    return found


def _rows(point: Published) -> int:
    return point.recipe.train.batch_tokens // point.recipe.train.sequence


def _cost(point: Published, time: float) -> float:
    """Device-seconds of an operation: models and batches of a search differ."""
    train = point.recipe.train
    done = step_operations(point.recipe.model, point.vocab, train.sequence, (train.batch_tokens, 0))
    return time * point.cluster.count / done.palm


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Correlation of ranks; equal values share theirs."""
    return statistics.correlation(_ranks(left), _ranks(right))


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < each for other in values) + (values.count(each) - 1) / 2 for each in values]


# ---- The report


def report(points: Sequence[Published]) -> dict[str, Any]:
    """All figures."""
    cold = [each for each in points if not anchored_only(each.source)]
    found = fit(cold)
    shares = {each.id: found.held_out.get(each.id, found.together) for each in points}
    calibrated = {each.id: seconds(each, found.devices[each.cluster.device.name]) for each in cold}
    fitted = {each.id: _error(each, calibrated[each.id]) for each in cold}
    times = {each.id: seconds(each, shares[each.id]) for each in points}
    held = {each.id: _error(each, times[each.id]) for each in cold}
    near, one = anchored(points, times), anchored_on_one(points, times)
    keys: dict[str, Callable[[Published], str]] = {
        "source": lambda each: each.source,
        "family": lambda each: family(each.source),
        "device": lambda each: each.cluster.device.name,
        "all": lambda _: "all",
    }
    kinds = {"fitted": fitted, "held_out": held, "anchored": near, "anchored_on_one": one}
    return {
        "errors": {name: _by(points, key, kinds) for name, key in keys.items()},
        "ranking": ranking(points, times, calibrated),
        "calculon_mean": CALCULON,
        "shares": {name: each.model_dump(exclude={"fitted_on"}) for name, each in found.devices.items()},
        "calibration": calibration_text(found),
        "worst": sorted(({"id": name, "error": math.expm1(error)} for name, error in held.items()), key=_size),
    }


def _size(entry: Mapping[str, Any]) -> float:
    return -abs(math.log1p(entry["error"]))


def _by(points: Sequence[Published], key: Callable[[Published], str], kinds: Mapping[str, Errors]) -> dict[str, Any]:
    found = dict[str, Any]()
    for name in dict.fromkeys(key(each) for each in points):
        entry = {}
        for kind, errors in kinds.items():
            if own := [errors[each.id] for each in points if key(each) == name and each.id in errors]:
                entry[kind] = spread(own)
        found[name] = entry
    return found


def read_points(files: Sequence[Path], error: Callable[[str], Any]) -> list[dict[str, Any]]:
    """The points of files, or of those that HORNBOOK_POINTS names."""
    named = [Path(each) for each in os.environ.get("HORNBOOK_POINTS", "").split(":") if each]
    if not (chosen := files or named):
        error("name the files of points, or set HORNBOOK_POINTS")
    return [each for path in chosen for each in json.loads(path.read_text(encoding="utf-8"))["points"]]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--calibrate", action="store_true", help="write plan/devices/calibration.toml")
    parser.add_argument("--worst", type=int, default=0)
    options = parser.parse_args()
    raw = read_points(options.files, parser.error)
    points, skipped = published(raw)
    timed = [each for each in points if each.seconds is not None]
    print(f"{len(timed)} of {len(raw)} points have a time; of all left out: {dict(skipped)}")
    found = report(timed)
    calibration, worst = found.pop("calibration"), found.pop("worst")
    if options.calibrate:
        Path(rates.__file__).with_name("calibration.toml").write_text(HEADER + calibration, encoding="utf-8")
    _print(found)
    for each in worst[: options.worst]:
        print(f"{each['error']:+.0%} {each['id']}")
    write("plan_time", found | {"left_out": dict(skipped)})


def _print(found: Mapping[str, Any]) -> None:
    header = ["", "points", "fitted", "p90", "held out", "p90", "bias"]
    header += ["anchored: points", "median", "p90", "on one: points", "median", "p90"]
    for groups in found["errors"].values():
        rows = []
        for name, entry in groups.items():
            cells = [name[:60]]
            for kind, keys in (("fitted", ("points", "median", "p90")), ("held_out", ("median", "p90", "bias"))):
                cells += _cells(entry.get(kind), keys)
            for kind in ("anchored", "anchored_on_one"):
                cells += _cells(entry.get(kind), ("points", "median", "p90"))
            rows.append(cells)
        print(table(header, rows), end="\n\n")
    rows = [
        [
            name,
            f"{each['layouts']:.0f}",
            *(f"{each[key]:.3f}" for key in ("spearman", "fitted")),
            f"{each['regret']:.1%}" if "regret" in each else "",
        ]
        for name, each in found["ranking"].items()
    ]
    print(table(["layouts", "number", "Spearman", "fitted", "regret"], rows))


def _cells(part: Mapping[str, float] | None, keys: Iterable[str]) -> list[str]:
    if part is None:
        return ["" for _ in keys]
    return [f"{part[key]:.0f}" if key == "points" else f"{part[key]:.1%}" for key in keys]


if __name__ == "__main__":
    main()
