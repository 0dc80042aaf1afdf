"""What evaluation in the loop takes of a run's time, with and without a limit.

`python -m benchmarks.evals.share DATA.jsonl.gz...` trains a small model with four tasks scored every 10 steps: without
a limit, and with `eval.share`; it writes benchmarks/results/evals_share.json.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.evals.harness import train

TASKS = '[{kind = "copy"}, {kind = "cloze"}, {kind = "arithmetic"}, {kind = "recall", items = 20}]'
SHARES = (1.0, 0.2, 0.05)
SETTINGS = (f"eval.tasks={TASKS}", "eval.every=10", "train.tokens=800k")


def measure(folder: Path, paths: Sequence[str], share: float) -> dict[str, Any]:
    """Share of the time before the last step, and how many evaluations and tasks there were."""
    run, _ = train(folder, paths, (), (*SETTINGS, f"eval.share={share}"))
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records = [json.loads(path.read_text()) for path in sorted((run / "evals").iterdir())][:-1]
    training, evaluating = sum(each["seconds"] for each in steps), sum(each["seconds"] for each in records)
    found = {"limit": share, "share": round(evaluating / (training + evaluating), 4), "evaluations": len(records)}
    found |= {"with_tasks": sum("tasks" in each for each in records), "training_seconds": round(training, 1)}
    found["evaluation_seconds"] = round(sum(each["seconds"] for each in records) / max(len(records), 1), 2)
    print(found)
    return found


def main() -> None:
    """Measure all limits and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="jsonl files with `text`, compressed or not")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = [measure(Path(scratch), given.paths, share) for share in SHARES]
    print(f"wrote {report.write('evals_share', {'tasks': TASKS, 'every': 10, 'limits': found})}")


if __name__ == "__main__":
    main()
