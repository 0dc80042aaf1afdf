"""The guard against what others do: a published spike, healthy noise, poisoned data, and what it costs.

    python -m benchmarks.reliability.guard [--parts bloom cost healthy poison rates sets] [--seconds N] [--texts FOLDER]

* BLOOM-176B's published iterations 31214 to 31222, behind noise around the level that was published before them: when
  does which rule fire? A replay, not a counterfactual: nobody can say what the run would have done.
* Healthy noise: losses and gradient norms of a real run with small batches, in blocks drawn again up to a million
  steps. Whatever fires is a false alarm.
* Poison: batches of random tokens at places of a small run. The loss on held-out text at its end, against the run that
  never had these batches, with the guard, with clipping alone, and with a skip rule of mean and standard deviation.
  Places that are on file are not run again (`--anew`: they are), and none begins after so many seconds.
* Rates: learning rates that are too high. Sets: twenty small sets in which the guard has nothing to do. Both take real
  text from a folder of .jsonl.gz files with `id` and `text`.
* Cost: what a step takes longer, A B A B in one process.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.reliability.guard.cost import cost
from benchmarks.reliability.guard.curves import bloom, healthy
from benchmarks.reliability.guard.poison import poison, summary
from benchmarks.reliability.guard.rates import rates
from benchmarks.reliability.guard.runs import prepare
from benchmarks.reliability.guard.sets import sets

PARTS = ("bloom", "cost", "healthy", "poison", "rates", "sets")


def main() -> None:
    """Measure the parts, print and write each."""
    parser = argparse.ArgumentParser(description="The guard of a run against other rules.")
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=420.0, help="after which no further place begins")
    parser.add_argument("--cost-seconds", type=float, default=60.0, help="of each model")
    parser.add_argument("--healthy", type=int, default=1_000_000)
    parser.add_argument("--recorded", type=int, default=6_000)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--texts", type=Path, help="real text, for rates and sets")
    parser.add_argument("--anew", action="store_true", help="measure places again that are on file")
    options = parser.parse_args()
    if "sets" in options.parts and options.texts is None:
        parser.error("sets are made of real text: give --texts FOLDER, or other --parts")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("rates", "sets"):
            (folder / part).mkdir()

        def poisoned_places() -> dict[str, Any]:
            done = [] if options.anew else report.known("guard").get("poison", {}).get("found", [])
            data = prepare(folder / "poison")
            return summary(poison(data, folder, options.places, done, options.seconds))

        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "bloom": bloom,
            "cost": lambda: cost(options.cost_seconds),
            "healthy": lambda: healthy(
                prepare(folder / "healthy", with_rulers=False), folder, options.healthy, options.recorded
            ),
            "poison": poisoned_places,
            "rates": lambda: rates(folder / "rates", options.texts),
            "sets": lambda: sets(folder / "sets", options.texts),
        }
        for part in options.parts:
            found = measures[part]()
            print(part, found, flush=True)
            page = "guard_settings" if part in ("rates", "sets") else "guard"
            print(report.write(page, {**report.known(page), part: found}))


if __name__ == "__main__":
    main()
