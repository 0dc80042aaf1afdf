"""Rules on recorded curves: BLOOM's published spike, and a million steps of healthy noise."""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reliability.guard.rules import MeanDeviations, Ours, Rule, TenTimesTheFirst, TwiceTheMean
from benchmarks.reliability.guard.runs import train
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir

FIRST = 31_214
BLOOM = (
    (2.199, 0.242),
    (2.220, 0.947),
    (2.595, 2.39),
    (2.242, 15.9),
    (2.345, 145.0),
    (5.098, 960.0),
    (3.492, 353.0),
    (3.213, 379.0),
    (2.805, 650.0),
)
"""(loss, gradient norm) of iterations 31214 on: BigScience, tr11-176B-ml chronicles, 2022-04-12."""
LEVEL_LOSS, LEVEL_NORM, SPREAD_LOSS, SPREAD_NORM = 2.2, 0.17, 0.03, 0.15
"""Before them; spreads of the loss, and of the logarithm of the norm."""


def bloom() -> dict[str, Any]:
    """Iterations at which each rule fires."""
    draw = random.Random(0)
    before = [
        (draw.gauss(LEVEL_LOSS, SPREAD_LOSS), LEVEL_NORM * math.exp(draw.gauss(0, SPREAD_NORM))) for _ in range(1_000)
    ]
    rules: dict[str, Rule] = {
        "hornbook": (ours := Ours()),
        "OLMo-core": MeanDeviations(),
        "llm-foundry": TwiceTheMean(),
        "Megatron-LM": TenTimesTheFirst(),
    }
    skips = {
        name: [number - len(before) + FIRST for number, row in enumerate([*before, *BLOOM]) if rule.fires(*row)]
        for name, rule in rules.items()
    }
    events: dict[str, int] = {}
    for step, kind in ours.found:
        events.setdefault(kind, step - 1 - len(before) + FIRST)
    return {"skips": skips, "first": events}


def healthy(data: Path, folder: Path, steps: int, recorded: int) -> dict[str, Any]:
    """False alarms within `steps` steps of noise of a real run of `recorded` steps."""
    train(data, folder / "noise", recorded, "guard.mode=off", "optim.schedule.kind=constant")
    curve = [
        (each["loss"], math.log(each["gradient_norm"])) for each in read_records(RunDir(folder / "noise").metrics)
    ][recorded // 4 :]
    noise = residuals(curve)
    level = statistics.median(loss for loss, _ in curve), statistics.median(norm for _, norm in curve)
    rules: dict[str, Rule] = {"hornbook": (ours := Ours(steps)), "OLMo-core": MeanDeviations()}
    skips = dict.fromkeys(rules, 0)
    for loss, norm in blocks(noise, steps):
        row = level[0] + loss, math.exp(level[1] + norm)
        for name, rule in rules.items():
            skips[name] += rule.fires(*row)
    kinds = [kind for _, kind in ours.found]
    return {
        "steps": steps,
        "recorded": len(noise),
        "skips": skips,
        "clips": kinds.count("D1a"),
        "spikes": kinds.count("D1c"),
        "rollbacks": kinds.count("rollback"),
    }


def residuals(curve: Sequence[tuple[float, float]], half: int = 64) -> list[tuple[float, float]]:
    """Distances of loss and log norm from their medians over 129 steps around."""
    found = []
    for at in range(half, len(curve) - half):
        near = curve[at - half : at + half + 1]
        found.append(tuple(curve[at][k] - statistics.median(row[k] for row in near) for k in (0, 1)))
    return found


def blocks(noise: Sequence[tuple[float, float]], steps: int, size: int = 100) -> Iterator[tuple[float, float]]:
    """Noise of so many steps: blocks of a recorded series, drawn again (a block bootstrap keeps what is correlated)."""
    draw, done = random.Random(1), 0
    while done < steps:
        first = draw.randrange(len(noise) - size)
        yield from noise[first : first + min(size, steps - done)]
        done += size
