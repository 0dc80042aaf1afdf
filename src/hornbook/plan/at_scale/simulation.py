"""Weak and strong scaling of a run, simulated far past the machines at hand: each number of devices is planned anew.

Strong scaling keeps the batch, weak scaling the tokens of each device. Of each point the best layout is simulated with
its messages, its pipeline, its failures and its checkpoints.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from hornbook.errors import UsageError
from hornbook.plan.at_scale.failure_costs import Upkeep
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.planner import plan_run
from hornbook.plan.search.plan_result import Layout
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

MOST_DEVICES = 2**20
"""Devices that a simulation goes up to."""
_SPAN = re.compile(r"(\d+)\.\.(\d+)")


class Point(Config):
    """One number of devices."""

    devices: int
    batch_tokens: int
    layout: Layout | None
    """The best one; None where no layout divides the batch among so many devices."""
    efficiency: float = 0.0
    """Tokens per second of a device, over those of the first point."""
    upkeep: Upkeep | None = None
    days: float | None = None
    """Of the whole run, with failures and checkpoints; None where its length is not known."""
    failures: float | None = None
    """Of the whole run."""

    @property
    def fits(self) -> bool:
        """Whether there is a layout, and it fits."""
        return self.layout is not None and self.layout.fits


class Curve(Config):
    """One kind of scaling."""

    kind: Literal["strong", "weak"]
    points: list[Point]


class Scaling(Config):
    """A simulation: nothing of it was measured."""

    name: str
    cluster: Cluster
    """The smallest one."""
    tokens: int | None
    mtbf_source: str
    curves: list[Curve] = Field(default_factory=list)


def device_counts(text: str) -> list[int]:
    """`8..100000`: the numbers from the first on, each twice the one before, and the last. Raises UsageError."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--scale {text!r}: write two numbers of devices, 8..4096")
    first, last = int(match[1]), int(match[2])
    if not 1 <= first <= last <= MOST_DEVICES:
        raise UsageError(f"--scale {text!r}: from 1 device to {MOST_DEVICES:,}, the smaller number first")
    counts = [first << n for n in range(64) if first << n < last]
    return [*counts, last]


def simulate_scaling(recipe: Recipe, cluster: Cluster, counts: Iterable[int], fixed: Mapping[str, Any] = {}) -> Scaling:
    """Both kinds of scaling of a recipe over devices like the cluster's. fixed: parts of every layout (`plan_run`)."""
    counts = list(counts)
    curves = []
    for kind in ("strong", "weak"):
        points = [_point(recipe, _of(cluster, each), kind, counts[0], fixed) for each in counts]
        curves.append(Curve(kind=kind, points=_with_efficiency(points)))
    known = next((point.upkeep for curve in curves for point in curve.points if point.upkeep), None)
    return Scaling(
        name=recipe.name,
        cluster=_of(cluster, counts[0]),
        tokens=recipe.train.tokens,
        mtbf_source=known.mtbf_source if known else "",
        curves=curves,
    )


def _of(cluster: Cluster, count: int) -> Cluster:
    machine = cluster.node if cluster.count > cluster.node else max(cluster.node, cluster.device.node)
    node = min(machine, count)
    return cluster.model_copy(update={"count": count, "node": node, "machine": ""})


def _point(recipe: Recipe, cluster: Cluster, kind: str, first: int, fixed: Mapping[str, Any]) -> Point:
    count, batch = cluster.count, recipe.train.batch_tokens
    if kind == "weak":  # whole rows
        rows = batch // recipe.train.sequence * count // first
        batch = rows * recipe.train.sequence
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"batch_tokens": batch})})
    try:
        plan = plan_run(recipe, cluster, search=True, fixed=fixed, remedy=False)
    except UsageError:  # no layout fills so many devices; what else a recipe may lack shows at the first point
        if count == first:
            raise
        return Point(devices=count, batch_tokens=batch, layout=None)
    best, upkeep = plan.best, plan.upkeep
    if upkeep is None:
        return Point(devices=count, batch_tokens=batch, layout=best)
    seconds = plan.seconds(best)
    return Point(
        devices=count,
        batch_tokens=batch,
        layout=best,
        upkeep=upkeep,
        days=None if seconds is None else upkeep.days(seconds),
        failures=None if seconds is None else upkeep.failures(seconds),
    )


def _with_efficiency(points: list[Point]) -> list[Point]:
    """Efficiencies over the first point that fits."""
    rates = [each.layout.tokens_per_second / each.devices if each.fits and each.layout else 0.0 for each in points]
    first = next(filter(None, rates), 1.0)
    return [each.model_copy(update={"efficiency": rate / first}) for each, rate in zip(points, rates, strict=True)]
