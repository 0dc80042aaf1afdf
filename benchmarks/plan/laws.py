"""Fits of scaling laws to synthetic ladders of a known law: errors, coverage of intervals, time, bias of parabolas.

    python -m benchmarks.plan.laws [--ladders N]

A ladder is 25 runs: five sizes around the best one at each of five compute budgets, 1e18 to 1e20, losses of the law of
arXiv 2404.10102 with noise. What is judged is the best size at 1e22, a hundred times the largest run.
"""

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.report import table, write
from hornbook.plan.scaling.approaches import parabolas, vertex_shift
from hornbook.plan.scaling.fit import Runs, bootstrap, fit_law
from hornbook.plan.scaling.laws import CONSTANTS, SumLaw, interval, law_named

TARGET = 1e22
NOISE = (0.0, 0.001, 0.003, 0.01)
"""Standard deviation of the loss, relative; seeds of one recipe differ by about 0.001 to 0.003."""
WIDTHS = (2.0, 4.0, 8.0, 16.0)


def truth(name: str = "besiroglu") -> SumLaw:
    """The law behind the ladders."""
    law = law_named(name)
    assert isinstance(law, SumLaw)
    return law


def ladder(noise: float, seed: int, width: float = 4.0) -> Runs:
    """Runs of five sizes, `width` times around the best, at each of five budgets."""
    law, draw = truth(), np.random.default_rng(seed)
    sizes = np.concatenate([law.best_size(c) * np.geomspace(1 / width, width, 5) for c in np.geomspace(1e18, 1e20, 5)])
    tokens = np.repeat(np.geomspace(1e18, 1e20, 5), 5) / 6 / sizes
    losses = [law.loss(*each) for each in zip(sizes.tolist(), tokens.tolist(), strict=True)]
    return Runs(sizes, tokens, np.array(losses) * np.exp(noise * draw.standard_normal(25)))


def judge(noise: float, ladders: int) -> dict[str, Any]:
    """Median error of the best size by approaches 3 and 2, and how many intervals hold the truth."""
    law, best = truth(), truth().best_size(TARGET)
    third, second, held, seconds = [], [], [], []
    for seed in range(ladders if noise else 1):
        runs = ladder(noise, seed)
        began = time.perf_counter()
        found, _ = fit_law(runs, name="own", parameters="all", source="")
        seconds.append(time.perf_counter() - began)
        third.append(abs(math.log(found.best_size(TARGET) / best)))
        frontier = parabolas(runs)
        second.append(abs(math.log(frontier.best_size(TARGET) / best)) if frontier else math.inf)
        if noise:
            samples = bootstrap(runs, 100, parameters="all", seed=seed)
            ends = {name: interval(getattr(each, name) for each in samples) for name in CONSTANTS}
            inside = [low <= getattr(law, name) <= high for name, (low, high) in ends.items()]
            low, high = interval(each.best_size(TARGET) for each in samples)
            held.append([*inside, low <= best <= high])
    coverage = [sum(column) / len(column) for column in zip(*held, strict=True)] if held else []
    return {
        "noise": noise,
        "approach_3": math.expm1(statistics.median(third)),
        "approach_2": math.expm1(statistics.median(second)),
        "coverage": dict(zip([*CONSTANTS, "best size"], coverage, strict=False)),
        "milliseconds": 1e3 * statistics.median(seconds),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ladders", type=int, default=40)
    ladders = parser.parse_args().ladders
    found = [judge(noise, ladders) for noise in NOISE]
    header = ["noise", "approach 3", "approach 2", "90 % interval holds the size", "a fit"]
    rows = [
        [
            f"{each['noise']:.1%}",
            f"{each['approach_3']:.1%}",
            f"{each['approach_2']:.1%}",
            f"{each['coverage']['best size']:.0%}" if each["coverage"] else "",
            f"{each['milliseconds']:.0f} ms",
        ]
        for each in found
    ]
    print(table(header, rows))
    law = truth("hoffmann")
    bias = {f"{width:g}": math.expm1(-vertex_shift(law.alpha, law.beta, width, 15)) for width in WIDTHS}
    print("tokens by parabolas, noise-free:", ", ".join(f"{name}x {value:+.2%}" for name, value in bias.items()))
    write("plan_laws", {"ladders": ladders, "noise": found, "bias": bias})


if __name__ == "__main__":
    main()
