"""What a first start costs beside a later one: `prepare`, `tokenize` and `train` without and with kernels on disk.

`python -m benchmarks.start.cold_start` takes 3 MB of the text of this Python installation, and recipe `tiny` up to its
first step; natively and on the same CPU with AVX2 alone; cold and warm in turns. `--source SRC --label NAME` times
others.
"""

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, table, write
from tests.cpus import AVX2

LABEL = "now"
BYTES = 3_000_000
BOUNDS = {"prepare": 5, "tokenize": 5, "train": 15}
"""Seconds that a cold start may take beyond a warm one."""
INSTRUCTIONS: dict[str, dict[str, str]] = {"native": {}, "AVX2": AVX2}
_CORPUS = "import sys, pathlib; from hornbook.text.ingest.corpora.installed import write_installed_corpus as w; "
_CORPUS += "w(pathlib.Path(sys.argv[1]), max_bytes=int(sys.argv[2]), seed=1)"
_KERNELS = "from hornbook.text.tokenizer.bpe.choice import LEAST_BYTES, compile_for; compile_for(LEAST_BYTES)"


def timed(command: list[str], environ: dict[str, str]) -> dict[str, float]:
    """Seconds of a command: on the clock, and of CPU with all processes that it starts."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, env=environ, check=True, capture_output=True)
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(seconds, 2), "cpu": round(cpu, 2)}


def recipe(folder: Path) -> Path:
    """Recipe `tiny` over the text in a folder, one step long."""
    path = folder / "tiny.toml"
    names = ("code", "docstrings")
    files = {name: json.dumps(str(folder / "raw" / f"{name}.jsonl")) for name in names}
    sources = [f"[text.sources.{name}]\npaths = [{file}]" for name, file in files.items()]
    path.write_text("\n".join(['extends = "tiny"', *sources, "[train]", "tokens = 4096", ""]))
    return path


def start(folder: Path, name: str, environ: dict[str, str]) -> dict[str, dict[str, float]]:
    """Each verb once, with the kernels of a folder, where they are or are left."""
    hornbook = [sys.executable, "-m", "hornbook.cli.main"]
    data, run, made = str(folder / f"{name}-data"), str(folder / f"{name}-run"), str(recipe(folder))
    return {
        "prepare": timed([*hornbook, "prepare", made, "--out", data], environ),
        "tokenize": timed([*hornbook, "tokenize", data], environ),
        "train": timed([*hornbook, "train", made, "--data", data, "--out", run], environ),
    }


def measure(source: Path | None, rounds: int, extra: dict[str, str]) -> dict[str, Any]:
    """Cold and warm starts in turns; medians, and what a cold one takes beyond a warm one."""
    environ = {**os.environ, **extra, **({"PYTHONPATH": str(source)} if source else {})}
    found: dict[str, list[Any]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        subprocess.run([sys.executable, "-c", _CORPUS, str(folder / "raw"), str(BYTES)], env=environ, check=True)
        for turn in range(rounds):
            own = environ | {"NUMBA_CACHE_DIR": str(folder / f"kernels-{turn}")}
            for kind, rows in found.items():
                rows.append(start(folder, f"{kind}-{turn}", own))
    return {verb: {kind: _medians(rows, verb) for kind, rows in found.items()} for verb in BOUNDS}


def compilation() -> dict[str, float]:
    """CPU seconds of compiling the tokenizer's kernels, which the library must not take for the same text."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "NUMBA_CACHE_DIR": folder}
        cold, warm = (timed([sys.executable, "-c", _KERNELS], environ) for _ in range(2))
    return {"seconds": round(cold["seconds"] - warm["seconds"], 2), "cpu": round(cold["cpu"] - warm["cpu"], 2)}


def _medians(rows: list[Any], verb: str) -> dict[str, float]:
    return {each: statistics.median(row[verb][each] for row in rows) for each in ("seconds", "cpu")}


def run(label: str = LABEL, source: Path | None = None, rounds: int = 1, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measure, print, and write results/cold_start.json beside what other labels have there."""
    measured = {kind: measure(source, rounds, INSTRUCTIONS[kind]) for kind in kinds or tuple(INSTRUCTIONS)}
    kernels = {} if source or kinds else {"tokenizer_kernels": compilation()}
    path = RESULTS / "cold_start.json"
    held = json.loads(path.read_text()) if path.exists() else {"starts": {}}
    figures = held["starts"]
    for kind, verbs in measured.items():
        figures.setdefault(kind, {})[label] = verbs
    rows = [
        (f"{verb}, {kind}", name, *(each[state][unit] for state in ("cold", "warm") for unit in ("seconds", "cpu")))
        for kind, labels in figures.items()
        for name, verbs in labels.items()
        for verb, each in verbs.items()
    ]
    print(table(["", "", "cold s", "CPU s", "warm s", "CPU s"], rows))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    write("cold_start", {**held, "date": today, "bytes": BYTES, **kernels, "starts": figures})
    return figures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", default=LABEL)
    parser.add_argument("--source", type=Path, help="another checkout's src")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=INSTRUCTIONS, action="append", default=[])
    words = parser.parse_args()
    run(words.label, words.source, words.rounds, tuple(words.only))


if __name__ == "__main__":
    main()
