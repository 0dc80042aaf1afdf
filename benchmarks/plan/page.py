"""Sections of docs/planner-figures.md: the planner beside what was measured."""

import math
import statistics
from typing import Any

from benchmarks.plan.runs import is_held_out
from benchmarks.report import rows_of, section

POINTS = "the published runs of the points' files, which are not part of the repository"


def _errors(found: dict[str, Any] | None) -> tuple[str, str, str]:
    """(points, median, 90th percentile)."""
    return ("", "", "") if found is None else (found["points"], f"{found['median']:.1%}", f"{found['p90']:.1%}")


ERRORS_OF_TIME = (
    "Anchored times miss by more than 12 % where a run and its anchor differ in what their source does not say.",
    "nanotron's 80B took 2.7 times its predicted step on 32 devices and 1.1 to 1.3 times on 64 and 256, its 1.3B 3.6",
    "times on 512. MaxText's 70B took 14 to 17 % longer on 256 to 2,048 devices than on 64 in 8 bits, 1 to 2 % in 16.",
    "torchtitan's asynchronous messages gained 16 % where products have a scale for each tensor, 4 % where they have",
    "one for each row; its attention over 4 context ranks ran at two thirds of its rate over 2.",
    "Cold, experts on Blackwell are worst: their rate nearly doubles between releases of a container.",
)


def plan_time(found: dict[str, Any]) -> list[str]:
    """Times of published runs, with their sources held out."""
    kinds = {"fitted": "fitted", "held_out": "held out", "anchored": "anchored", "anchored_on_one": "anchored on one"}
    errors = found["errors"]
    rows = [
        (name, *(cell for kind in kinds for cell in _errors(each.get(kind))))
        for group in ("all", "device", "family")
        for name, each in errors[group].items()
    ]
    header = [
        "",
        *(f"{kind}: {what}" for kind in kinds.values() for what in ("n", "median", "p90")),
    ]
    ranks = [
        (
            name,
            int(each["layouts"]),
            *(f"{each[key]:.2f}" for key in ("spearman", "fitted")),
            f"{each['regret']:.1%}" if "regret" in each else "",
        )
        for name, each in found["ranking"].items()
    ]
    return section(
        "The planner's time of a step",
        f"`python -m benchmarks.plan.timing`: errors on {POINTS}.",
        "Fitted: six shares of each kind of device, fitted on all of them. Held out: fitted without this family of",
        "sources; what each trainer does beside computing is told by its source, or by what explains its errors.",
        "Anchored: another run of the source, model, device and setting scales the time, the nearest one in shape,",
        "rows and layout among those on the fewest devices; on one: the same run, of middle size, for all of them.",
        *rows_of(header, rows),
        *ERRORS_OF_TIME,
        "Ranks of layouts: Spearman's correlation of measured times with those predicted by shares that are fitted",
        "without their family, and with it; and how much slower our choice was than the best one measured. Nine of",
        "vTrain's 21 times lie within 4.5 %, so that errors of 1 % change ranks. Of BLOOM's, four with heads of 112",
        "and 128 took 15 to 22 % longer than their neighbours; attention in one of these makes the same calls as in a",
        "layout that did not, so that no model of the calls ranks both.",
        *rows_of(["layouts", "n", "Spearman, held out", "fitted", "regret"], ranks),
    )


def plan_points(found: dict[str, Any]) -> list[str]:
    """Memory of published runs."""
    rows = [(name, *_errors(each["memory"])) for name, each in found["errors"].items() if "memory" in each]
    return section(
        "The planner's memory of a device",
        f"`python -m benchmarks.plan.points`: errors on {POINTS}, without a fitted constant.",
        f"Of {found['out_of_memory']} layouts that ran out of memory {found['said_to_fit']} are said to fit.",
        *rows_of(["source", "n", "median", "p90"], rows),
    )


def plan_runs(found: dict[str, Any]) -> list[str]:
    """Our own runs on a CPU against their plans."""
    lines = section(
        "Plans and runs on a CPU",
        "`python -m benchmarks.plan.runs`: what the planner says of a run, and what the run measured, with one thread",
        "a rank and the rates that `hornbook bench` measured. Where other processes shared the machine the time is",
        "processor time. A CPU's six constants were fitted on decoders and encoders; encoder-decoders, experts,",
        "windows and latent attention are held out, adapters are not: a constant was chosen in view of their runs.",
        "Goals: memory within 5 %, time within 10 %.",
    )
    kept = [row for row in found["rows"] if is_held_out(row[0])]
    figures = [
        (f"{what}, {group}", len(rows), *_spread([abs(row[at] / row[at + 1] - 1) for row in rows]))
        for what, at in (("memory", 1), ("time", 4))
        for group, rows in (("all", found["rows"]), ("held out", kept))
    ]
    lines += rows_of(["error", "n", "median", "90 of 100", "worst"], figures)
    rows = [[name, *map(_cell, row[:-2]), row[-1]] for name, *row in found["rows"]]
    return lines + rows_of(["configuration", "MiB planned", "measured", "", "ms planned", "measured", ""], rows)


def _spread(errors: list[float]) -> list[str]:
    """Median, 90th percentile and largest."""
    ordered = sorted(errors)
    ninth = ordered[math.ceil(0.9 * len(ordered)) - 1]
    return [f"{each:.1%}" for each in (statistics.median(ordered), ninth, ordered[-1])]


def _cell(value: Any) -> Any:
    return f"{value:.0f}" if isinstance(value, float) else value


SECTIONS = (plan_time, plan_points, "plan_peers", plan_runs, "plan_search", "plan_trace", "plan_laws", "plan_fsdp")
