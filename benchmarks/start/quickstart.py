"""The quickstart: seconds, tokens, bits-per-byte against gzip; the same size and seed give the same numbers.

`python -m benchmarks.start.quickstart` runs it once as a new user would, then twice with that size pinned. With
`--matrix` it runs it on other kinds of machines (`quickstart_matrix`).
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.report import show
from benchmarks.start import quickstart_matrix

LIMIT_SECONDS = 180
SAME = ["steps", "tokens", "loss", "bits_per_byte", "baselines", "dedup_precision", "dedup_recall"]


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
        "same_numbers": all(again[0][key] == again[1][key] for key in SAME),
    }
    show("quickstart", figures)
    return figures


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="The quickstart")
    parser.add_argument("--matrix", action="store_true", help="threads x instructions x kernel cache x neighbour")
    parser.add_argument("--rows", help="numbers of rows of the matrix, such as 0,5; by default those that are missing")
    words = parser.parse_args()
    if words.matrix:
        quickstart_matrix.run(None if words.rows is None else [int(number) for number in words.rows.split(",")])
    else:
        run()


if __name__ == "__main__":
    main()
