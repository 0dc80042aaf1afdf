"""How long the planner takes: a search of all layouts of a cluster, and the start of `hornbook plan`.

    python -m benchmarks.plan.search [--times N]

Each search runs in a process of its own, so that nothing is kept from another one; the best of N counts. `layouts` are
all legal ones, `estimated` those whose memory or step was estimated beyond a bound. The start is the processor's time
of `hornbook plan llama-1b --cluster 8xH100`, compiled files present, beside that of `import pydantic` and of Python.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.report import table, write
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import settle, trainer_of, vocabulary
from hornbook.plan.search.best import Search
from hornbook.plan.search.result import SAME, capacity
from hornbook.plan.search.space import Layouts
from hornbook.settings.resolve import resolve

CASES = (
    ("llama-1b", "8xH100", ()),
    ("llama-1b", "24xH100", ("train.compile=false", "train.batch_tokens=1572864")),
    ("llama-65b", "8x8xH100", ()),
    ("llama-65b", "8x8xH100", ("train.compile=false",)),
    ("mixtral-8x7b", "32x8xH100", ("train.compile=false",)),
    ("gpt3-175b", "128x8xH100", ()),
    ("gpt3-175b", "128x8xH100", ("train.compile=false",)),
)
"""Recipe, cluster, settings; without compilation there are more axes (context ranks, schedules that split backward)."""
STARTS = {
    "python": ("-c", "pass"),
    "import pydantic": ("-c", "import pydantic; pydantic.BaseModel"),
    "import the recipe's models": ("-c", "import hornbook.settings.recipe"),
    "plan tiny": ("-m", "hornbook", "plan", "tiny", "--json"),
    "plan llama-1b --cluster 8xH100": ("-m", "hornbook", "plan", "llama-1b", "--cluster", "8xH100", "--json"),
}


def search(number: int, *, count: bool) -> dict[str, Any]:
    """One search in this process."""
    name, words, settings = CASES[number]
    cluster = parse_cluster(words)
    recipe = settle(resolve(name, settings, {}).recipe, cluster)
    layouts = Layouts(recipe, cluster, [recipe.train.precision])
    found = Search(vocabulary(recipe), cluster, layouts, trainer_of)
    before = time.process_time()
    best = found.fastest(6, capacity(cluster), SAME)
    seconds = time.process_time() - before
    result: dict[str, Any] = {"recipe": " ".join((name, *settings)), "cluster": words, "seconds": seconds}
    result |= {"estimated": found.num_estimates, "best": best[0].step.total}
    if count:
        variants = [each for block in layouts.blocks() for each in layouts.variants(block)]
        result["layouts"] = sum(1 for each in variants for _ in layouts.spreads(each))
    return result


def start(arguments: tuple[str, ...]) -> dict[str, float]:
    """Processor's and elapsed seconds of a Python process."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environ, stdout=subprocess.DEVNULL, check=True)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "seconds": end - begin}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--case", type=int)
    parser.add_argument("--count", action="store_true")
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(search(options.case, count=options.count)))
        return
    rows = []
    for number in range(len(CASES)):
        command = [sys.executable, "-m", "benchmarks.plan.search", "--case", str(number)]
        ran = [
            json.loads(subprocess.check_output([*command, *(["--count"] if time == 0 else [])]))
            for time in range(options.times)
        ]
        assert len({each["best"] for each in ran}) == 1, "the search is not deterministic"
        rows.append(ran[0] | {"seconds": min(each["seconds"] for each in ran)})
    starts: dict[str, dict[str, float]] = {}
    for _ in range(options.times + 1):  # the first writes compiled files
        for name, arguments in STARTS.items():
            found, known = start(arguments), starts.get(name)
            starts[name] = found if known is None else {key: min(found[key], known[key]) for key in found}
    names = ("recipe", "cluster", "layouts", "estimated", "seconds")
    print(
        table(list(names), [[f"{row[name]:.3f}" if name == "seconds" else row[name] for name in names] for row in rows])
    )
    print(
        table(
            ["start", "CPU ms", "ms"],
            [[name, f"{1e3 * each['cpu']:.0f}", f"{1e3 * each['seconds']:.0f}"] for name, each in starts.items()],
        )
    )
    write("plan_search", {"searches": rows, "starts": starts})


if __name__ == "__main__":
    main()
