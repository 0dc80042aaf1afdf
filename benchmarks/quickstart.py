"""The quickstart: seconds, tokens, bits-per-byte against gzip; the same size and seed give the same numbers.

`python -m benchmarks.quickstart` runs it once as a new user would, then twice with that size pinned.
"""

import json
import subprocess
import sys
from typing import Any

from benchmarks.report import table, write

LIMIT_SECONDS = 180
SAME = ["size", "steps", "tokens", "loss", "bits_per_byte", "baselines", "dedup_precision", "dedup_recall"]


def quickstart(*words: str) -> dict[str, Any]:
    """Figures of one run of the demo."""
    command = [sys.executable, "-m", "hornbook.cli.main", "quickstart", "--json", *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def run() -> dict[str, Any]:
    """Time the demo, repeat it, compare, write results/quickstart.json."""
    first = quickstart()
    again = [quickstart("--size", first["size"]) for _ in range(2)]
    figures = {
        "figures": first,
        "seconds": [first["seconds"], *(other["seconds"] for other in again)],
        "within_limit": first["seconds"] <= LIMIT_SECONDS,
        "same_numbers": all(other[key] == first[key] for other in again for key in SAME),
    }
    rows = [(key, first[key]) for key in ("size", "tokens", "seconds", "loss", "bits_per_byte")]
    rows += [(f"baseline: {name}", value) for name, value in first["baselines"].items()]
    rows += [("same size and seed, same numbers", figures["same_numbers"])]
    print(table(["quickstart", "figure"], rows))
    write("quickstart", figures)
    return figures


if __name__ == "__main__":
    run()
