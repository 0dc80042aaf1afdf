"""Shares of `calibration.toml` from published times: six for each kind of device, sources held out in turn.

The logarithm of a step's time is nearly linear in those of the shares, so a fit needs the times and their slopes once.
It makes the sum of absolute errors least, each source counting as the root of its points, and keeps to its start where
the points say nothing (a ridge).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from benchmarks.plan.published import Published
from hornbook.plan.devices.device_rates import Shares
from hornbook.plan.step_time import estimate_step

NAMES = ("products", "narrow", "attention", "bandwidth", "link", "network")
LIMITS = {"products": (0.3, 0.95), "narrow": (0.2, 0.9), "attention": (0.1, 0.9)}
LIMITS |= {"bandwidth": (0.3, 0.95), "link": (0.2, 0.95), "network": (0.1, 0.95)}
START = Shares(products=0.75, narrow=0.6, attention=0.45, bandwidth=0.7, link=0.7, network=0.7)
"""Where a fit begins, and where shares stay that no point speaks of."""
STEP = 0.1
"""Of a logarithm, for slopes."""
PRIOR = 0.3
"""Standard deviation of a share's logarithm around its start."""
SMALLEST = 0.02
"""Errors below it weigh as squares."""
ENOUGH = 6
"""Points of a device that are fitted; a device with fewer keeps the shares of all devices together."""

Array = NDArray[np.float64]


def family(source: str) -> str:
    """What is held out together: releases of one table, tables of one trainer on one machine."""
    for name in ("Megatron Bridge", "DGX Cloud", "Narayanan", "BLOOM", "torchtitan", "nanotron", "MPT"):
        if name in source:
            return name
    return source.split("(", maxsplit=1)[0].strip()


def seconds(point: Published, shares: Shares) -> float:
    """The step's time."""
    return estimate_step(point.recipe, point.vocab, point.cluster, point.trainer, shares).total


@dataclass(frozen=True)
class Slopes:
    """Points with their errors at some shares, and how those change with each share."""

    points: Sequence[Published]
    start: Shares
    errors: Array
    slopes: Array

    def where(self, kept: Sequence[bool]) -> "Slopes":
        """Some of them."""
        chosen = [point for point, keep in zip(self.points, kept, strict=True) if keep]
        mask = np.array(kept, dtype=bool)
        return Slopes(chosen, self.start, self.errors[mask], self.slopes[mask])


def slopes(points: Sequence[Published], start: Shares) -> Slopes:
    """Errors and slopes at `start`."""
    base = np.array([np.log(seconds(each, start) / (each.seconds or 1.0)) for each in points])
    columns = []
    for name in NAMES:
        moved = start.model_copy(update={name: getattr(start, name) * float(np.exp(STEP))})
        there = np.array([np.log(seconds(each, moved) / (each.seconds or 1.0)) for each in points])
        columns.append((there - base) / STEP)
    return Slopes(points, start, base, np.stack(columns, axis=1))


def solve(known: Slopes, center: Shares) -> Shares:
    """The shares that make the errors least; those that nothing speaks of stay at `center`."""
    counts = defaultdict(int)
    for each in known.points:
        counts[family(each.source)] += 1
    weights = np.array([counts[family(each.source)] ** -0.5 for each in known.points])
    weights = weights / weights.mean()
    away = np.log([getattr(center, name) / getattr(known.start, name) for name in NAMES])
    found = away.copy()
    ridge = np.eye(len(NAMES)) / PRIOR**2
    for _ in range(60):
        left = np.maximum(np.abs(known.errors + known.slopes @ found), SMALLEST)
        scaled = known.slopes * (weights / left)[:, None]
        found = np.linalg.solve(scaled.T @ known.slopes + ridge, ridge @ away - scaled.T @ known.errors)
    values = {}
    for name, moved in zip(NAMES, found, strict=True):
        low, high = LIMITS[name]
        values[name] = round(float(np.clip(getattr(known.start, name) * np.exp(moved), low, high)), 3)
    return Shares.model_validate(values)


@dataclass(frozen=True)
class Fit:
    """Shares of each device, and for each point those of its device without its source."""

    together: Shares
    devices: dict[str, Shares]
    sources: dict[str, list[str]]
    held_out: dict[str, Shares]


def fit(points: Sequence[Published]) -> Fit:
    """The fit of all points, and with each family of sources left out."""
    first = slopes(points, START)
    together = solve(first, START)
    held, devices, sources = {}, {}, {}
    pooled = {
        name: solve(first.where([family(each.source) != name for each in points]), START) for name in _families(points)
    }
    for device, chosen in _by_device(points).items():
        own = first.where([each.cluster.device.name == device for each in points])
        near = solve(own, together) if len(chosen) >= ENOUGH else together
        again = slopes(chosen, near)
        devices[device] = solve(again, together) if len(chosen) >= ENOUGH else together
        sources[device] = sorted(_families(chosen))
        for name in _families(chosen):
            kept = [family(each.source) != name for each in chosen]
            shares = solve(again.where(kept), pooled[name]) if sum(kept) >= ENOUGH else pooled[name]
            held |= {each.id: shares for each, keep in zip(chosen, kept, strict=True) if not keep}
    return Fit(together, devices, sources, held)


def _families(points: Sequence[Published]) -> set[str]:
    return {family(each.source) for each in points}


def _by_device(points: Sequence[Published]) -> dict[str, list[Published]]:
    ordered = sorted(points, key=lambda each: each.cluster.device.name)
    return {name: list(chosen) for name, chosen in groupby(ordered, key=lambda each: each.cluster.device.name)}


def calibration_text(found: Fit) -> str:
    """The tables of `calibration.toml`."""
    lines = []
    entries = {"default": (found.together, ["all of the below"])}
    entries |= {
        name: (shares, found.sources[name]) for name, shares in found.devices.items() if shares != found.together
    }
    for name, (shares, where) in entries.items():
        key = name if name.isidentifier() else f'"{name}"'
        quoted = ", ".join(f'"{each}"' for each in where)
        lines += ["", f"[{key}]", *(f"{each} = {getattr(shares, each)}" for each in NAMES), f"fitted_on = [{quoted}]"]
    return "\n".join(lines) + "\n"
