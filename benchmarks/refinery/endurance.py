"""Memory of prepare and tokenize as the input grows, and kill -9 at random points: are the bytes the same?

    python -m benchmarks.refinery.endurance [--kills 50] [--megabytes 100 1000 5000]

What is not asked for (`--kills 0`) stays as it was measured before.
The input is made: real words in random order, a tenth of the documents copied from earlier ones, in files of 20 MB.
Memory is the largest sum over the processes of one command, sampled every 50 ms (proportional set size, so that what
they share counts once).
"""

import argparse
import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil

from benchmarks import report
from benchmarks.refinery.planted_duplicates import DATA
from hornbook.files.artifact import digest_file

STEPS = (
    'text.steps=[{kind="normalize"}, {kind="drop_empty"}, {kind="exact_dedup"}, {kind="gopher_quality"}, '
    '{kind="near_dedup"}, {kind="line_dedup"}]'
)
FILE_BYTES = 20_000_000
SAMPLE_SECONDS = 0.05


def real_words() -> list[str]:
    """Words of real documents, as often as they stand there."""
    with gzip.open(DATA / "handbook-en-US.jsonl.gz", "rt", encoding="utf-8") as file:
        return [word for line in file for word in json.loads(line)["text"].split()]


def write_input(folder: Path, size: int, seed: int = 0) -> None:
    """So many bytes of JSON lines."""
    folder.mkdir()
    draw, words = random.Random(seed), real_words()
    recent: list[str] = []
    written = number = 0
    while written < size:
        with (folder / f"{number:05d}.jsonl").open("w") as file:
            filled = 0
            while filled < min(FILE_BYTES, size - written):
                text = draw.choice(recent) if recent and draw.random() < 0.1 else _document(draw, words)
                recent = [*recent[-200:], text]
                filled += file.write(json.dumps({"text": text}) + "\n")
        written, number = written + filled, number + 1


def _document(draw: random.Random, words: list[str]) -> str:
    first = draw.randrange(len(words))
    starts = [(first + 12 * n) % len(words) for n in range(draw.randint(5, 120))]
    lines = [words[start : start + 12] for start in starts]
    for line in lines:
        draw.shuffle(line)
    return "\n".join(" ".join(line) for line in lines)


def commands(raw: Path, out: Path, workers: int = 2) -> list[list[str]]:
    """From raw text to shards."""
    hornbook = [sys.executable, "-m", "hornbook"]
    prepare = [*hornbook, "prepare", str(raw), "--out", str(out), "--workers", str(workers), STEPS]
    tokenize = [*hornbook, "tokenize", str(out), "--workers", str(workers), "--vocab", "4096"]
    return [prepare, tokenize]


def peak_bytes(command: list[str]) -> tuple[int, float]:
    """(largest memory of all its processes, seconds) of a command."""
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, _memory(process.pid))
        time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return peak, time.monotonic() - started


def _memory(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            total += process.memory_full_info().pss
    except psutil.Error:
        pass
    return total


def digests(out: Path) -> dict[str, str]:
    """Of every file that is a result."""
    paths = sorted(path for path in out.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(out)): digest_file(path) for path in paths}


def memory(folder: Path, megabytes: int) -> dict[str, Any]:
    """Peaks of both commands over an input of that size."""
    write_input(folder / "raw", megabytes * 1_000_000)
    found: dict[str, Any] = {"megabytes": megabytes}
    for name, command in zip(("prepare", "tokenize"), commands(folder / "raw", folder / "out"), strict=True):
        peak, seconds = peak_bytes(command)
        found[name] = {"peak_mib": peak / 2**20, "seconds": seconds}
    return found


def kills(folder: Path, count: int, megabytes: int = 40) -> dict[str, Any]:
    """Kill the commands at random moments until they end; compare with a run that was left alone, on one worker."""
    write_input(folder / "raw", megabytes * 1_000_000)
    seconds = 0.0
    for command in commands(folder / "raw", folder / "whole", workers=1):
        seconds += peak_bytes(command)[1]
    expected, draw = digests(folder / "whole"), random.Random(1)
    done = unequal = runs = 0
    while done < count:
        shutil.rmtree(folder / "killed", ignore_errors=True)
        for command in commands(folder / "raw", folder / "killed"):
            while not _survives(command, draw.uniform(0.5, seconds / 2) if done < count else None):
                done += 1
        runs += 1
        unequal += digests(folder / "killed") != expected
    return {"kills": done, "runs": runs, "unequal": unequal, "megabytes": megabytes}


def _survives(command: list[str], limit: float | None) -> bool:
    """Whether a command ended before it was killed with all its processes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)  # its workers end with it
        process.wait()
        return False
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    return True


def run(sizes: Sequence[int] = (100, 1000, 5000), count: int = 50) -> dict[str, Any]:
    """All of it; each part is written to benchmarks/results/refinery_endurance.json as soon as it is known."""
    path = report.RESULTS / "refinery_endurance.json"
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"memory": []}
    figures = {name: each for name, each in figures.items() if name != "machine"} | {"steps": STEPS}
    if count:
        with tempfile.TemporaryDirectory() as folder:
            figures["kills"] = kills(Path(folder), count)
        _write(figures, figures["kills"])
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            found = memory(Path(folder), size)
        others = [each for each in figures["memory"] if each["megabytes"] != size]
        figures["memory"] = sorted([*others, found], key=itemgetter("megabytes"))
        _write(figures, found)
    return figures


def _write(figures: dict[str, Any], news: dict[str, Any]) -> None:
    print(f"{news}; wrote {report.write('refinery_endurance', figures)}", flush=True)


def main() -> None:
    """`run` with the sizes and kills given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[100, 1000, 5000])
    given = parser.parse_args()
    run(given.megabytes, given.kills)


if __name__ == "__main__":
    main()
