"""Speed of two versions of the package on the same work: is a change of form within the noise?

    python -m benchmarks.reliability.speed REVISION

Four figures of the revision and of the working tree, taken in turn (A B A B ...): CPU seconds of `prepare` with
fifteen steps and of `tokenize`, tokens a CPU second of the loader, tokens per second of training a small decoder. The
loader reads the tokens that its version wrote. Ratios of medians count; nothing else should run.
"""

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import report
from benchmarks.reliability.unchanged import STEPS, checkout, hornbook
from hornbook.text.ingest.corpora.installed import write_installed_corpus

ROOT = Path(__file__).parents[2]
BYTES, COPIES, TOKENS, WARM_STEPS = 12_000_000, 8, 60_000, 4
READ = """
import sys, time
from pathlib import Path
try:
    from hornbook.data.config.data import DataConfig
    from hornbook.data.loader.loader import build_loader
except ModuleNotFoundError:
    from hornbook.data.config import DataConfig
    from hornbook.data.loader import build_loader
ROWS, SEQUENCE, COUNT = 8, 512, 2000
loader = build_loader(DataConfig(), Path(sys.argv[1]), sequence=SEQUENCE, micro_batch=ROWS, seed=1, prefetch=False)
def read(count):
    for _ in range(count):
        for batch in loader.take(ROWS).batches:
            assert batch.tokens.shape == (ROWS, SEQUENCE)
read(COUNT)
start = time.process_time()
read(COUNT)
print(COUNT * ROWS * SEQUENCE / (time.process_time() - start))
"""
"""Prints tokens a CPU second of a second pass; under the names of either version."""


def measure(source: Path, base: Path, folder: Path) -> dict[str, float]:
    """The four figures of one version, whose package is in `source`."""
    data, run = folder / "data", folder / "run"
    figures = {"prepare, CPU s": cpu_seconds(source, "prepare", base / "refinery.toml", base / "raw", "--out", data)}
    figures["tokenize, CPU s"] = cpu_seconds(source, "tokenize", data)
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        [sys.executable, "-c", READ, data], env=environment, check=True, capture_output=True, text=True
    )
    figures["loader, tokens a CPU s"] = float(output.stdout)
    hornbook(source, "train", "tiny", "--data", data, "--out", run, "--train.tokens", TOKENS, "--train.threads", 2)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figures["training, tokens/s"] = statistics.median(step["tokens_per_second"] for step in steps[WARM_STEPS:])
    return figures


def cpu_seconds(source: Path, *words: object) -> float:
    """CPU seconds of a command and of the processes it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    hornbook(source, *words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(revision: str, rounds: int) -> None:
    """Measure both versions in turn; print and write medians and their ratios."""
    found: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        sources = {"before": checkout(revision, base), "now": ROOT / "src"}
        write_installed_corpus(base / "raw", max_bytes=BYTES, seed=0)
        for path, number in itertools.product([*(base / "raw").glob("*.jsonl")], range(1, COPIES)):
            shutil.copy(path, path.with_stem(f"{path.stem}-{number}"))  # copies are measured, then dropped
        (base / "refinery.toml").write_text(STEPS)
        for number in range(rounds + 1):
            for side, source in sources.items():
                figures = measure(source, base, base / f"{side}-{number}")
                print(number, side, figures, flush=True)
                if number:
                    found[side].append(figures)
    medians = {
        side: {name: statistics.median(each[name] for each in figures) for name in figures[0]}
        for side, figures in found.items()
    }
    ratios = {name: medians["now"][name] / before for name, before in medians["before"].items()}
    report.write("speed", {"revision": revision, "rounds": found, "now_over_before": ratios})
    rows = [(name, medians["before"][name], medians["now"][name], ratio) for name, ratio in ratios.items()]
    print(report.table(["figure", "before", "now", "ratio"], rows))


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description="Compare the speed of two versions of the package.")
    parser.add_argument("revision", help="commit of the version to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds, after one that is not (default 5)")
    options = parser.parse_args()
    run(options.revision, options.rounds)


if __name__ == "__main__":
    main()
