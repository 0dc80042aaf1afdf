"""Prints the CPU seconds of starts, `python -m scripts.starts [FOLDER ...]`: a column for each checkout, a row for each
command. Medians of five rounds after one that warms up, the checkouts in turn; user and system time, children included.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parents[1]
ROUNDS = 5
TINY = (
    *("model.layers=1", "model.width=32", "model.heads=2", "train.sequence=32", "train.batch_tokens=128"),
    *("train.micro_batch=2", "train.tokens=256", "train.device=cpu", "train.threads=1"),
)


def main(folders: list[str]) -> None:
    """Measure and print."""
    roots = [Path(folder) for folder in folders or [str(HERE)]]
    found = defaultdict[str, dict[Path, list[float]]](lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as scratch:
        for words in (
            ["prepare", *map(str, sorted((HERE / "docs").glob("p*.md"))), "--out", "data"],
            ["tokenize", "data", "text.tokenizer.vocab=300"],
        ):
            cpu_seconds(roots[0], ["-m", "hornbook", *words], scratch)
        for number in range(1 + ROUNDS):
            for root in roots:
                for name, words in commands(f"run-{roots.index(root)}-{number}").items():
                    seconds = cpu_seconds(root, words, scratch)
                    if number:
                        found[name][root].append(seconds)
    for name, times in found.items():
        print(f"{name:32}", *(f"{statistics.median(times[root]):>8.2f}" for root in roots))


def commands(run: str) -> dict[str, list[str]]:
    """What is measured, in an order in which each finds what it needs."""
    hornbook = ["-m", "hornbook"]
    return {
        "import torch": ["-c", "import torch"],
        "import the training loop": ["-c", "import hornbook.run.loop.training_loop"],
        "hornbook --help": [*hornbook, "--help"],
        "hornbook plan tiny": [*hornbook, "plan", "tiny"],
        "train, two steps": [*hornbook, "train", "tiny", "--out", run, "data.path=data", *TINY],
        "generate, one token": [*hornbook, "generate", run, "--prompt", "a", "--tokens", "1"],
    }


def cpu_seconds(root: Path, words: list[str], folder: str) -> float:
    """Of one command with the package of a checkout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str((root / "src").resolve())}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.decode()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main(sys.argv[1:])
