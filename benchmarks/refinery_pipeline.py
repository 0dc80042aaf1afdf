"""From raw text to shards of tokens: `hornbook prepare` and `hornbook tokenize` beside datatrove and tokenizers.

The raw text is real documents in one JSON-lines file for each source, with copies planted among them, as they are and
edited. All do the same work with the same tokenizer.json: Unicode form, exact copies, rules of Gopher and FineWeb, near
duplicates by MinHash (14 bands of 8, 5-word shingles), tokens on disk. One worker and one thread each, whole commands
in turn, CPU seconds of all their processes, start and imports too; compiled code is in its cache, because a first run
trains the tokenizer. datatrove 0.10.1 in two forms: as it is, with spaCy's words, on samples since it is slow, and its
logic with words between blanks, which are ours too.

    python -m benchmarks.refinery_pipeline [--quick]
"""

import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.peers.environment import ROOT, peer_python
from benchmarks.planted_duplicates import DATA, edited
from benchmarks.report import table, write

SOURCES = ("cppreference", "git-doc", "handbook-en-US", "linux-doc-6.1", "python3.11", "vim")
MOST_BYTES = 100_000
"""spaCy refuses a million characters."""
COPIED = {0.0: 0.05, 0.05: 0.05, 0.2: 0.05}
"""Share of words edited -> share of documents that are copied so."""
STEPS = (
    'text.steps=[{kind="normalize"}, {kind="exact_dedup"}, {kind="gopher_quality"}, {kind="gopher_repetition"}, '
    '{kind="fineweb"}, {kind="near_dedup"}]'
)
OURS, LOGIC, STOCK = "hornbook", "datatrove, words between blanks", "datatrove, stock"
WORDS = {LOGIC: "blanks", STOCK: "stock"}
ROUNDS, VOCAB = 2, 32_768
SAMPLES = {"few": 200, "sample": 10}
"""Stock datatrove gets every so manieth document: few for what its start costs, and as many as it can do in minutes."""
STAGES = ("behind_rules", "kept")
ENVIRONMENT = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # bytecode is kept, as that of installed packages is
}


def write_raw(folder: Path, every: int) -> dict[str, float]:
    """Every so manieth document of each source, and copies of some, in random order; counts."""
    folder.mkdir()
    rng, documents, size = np.random.default_rng(0), 0, 0
    for source in SOURCES:
        with gzip.open(DATA / f"{source}.jsonl.gz", "rt", encoding="utf-8") as file:
            texts = [json.loads(line)["text"] for number, line in enumerate(file) if number % every == 0]
        texts = [text for text in texts if len(text.encode()) <= MOST_BYTES]
        for share, part in COPIED.items():
            chosen = rng.choice(len(texts), int(part * len(texts)), replace=False).tolist()
            texts += [edited(texts[row], share, rng) for row in chosen]
        texts = [texts[row] for row in rng.permutation(len(texts)).tolist()]
        rows = [json.dumps({"id": f"{source}/{row}", "text": text}) + "\n" for row, text in enumerate(texts)]
        (folder / f"{source}.jsonl").write_text("".join(rows), encoding="utf-8")
        documents, size = documents + len(texts), size + sum(len(text.encode()) for text in texts)
    return {"documents": documents, "megabytes": size / 1e6}


def cpu_seconds(*commands: list[Any]) -> float:
    """Of commands in a row, with all processes that they wait for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for command in commands:
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env=os.environ | ENVIRONMENT, timeout=1800)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(raw: Path, out: Path, tokenizer: Path | None) -> list[list[Any]]:
    """Both commands; without a tokenizer they train one."""
    hornbook, alone = [sys.executable, "-m", "hornbook"], ["--workers", "1"]
    made = ["--vocab", str(VOCAB)] if tokenizer is None else ["--tokenizer", tokenizer]
    return [
        [*hornbook, "prepare", *sorted(raw.glob("*.jsonl")), "--out", out, *alone, STEPS],
        [*hornbook, "tokenize", out, *alone, *made],
    ]


def theirs(name: str, raw: Path, out: Path, tokenizer: Path) -> list[Any]:
    """datatrove."""
    return [peer_python(), "-m", "benchmarks.peers.datatrove_pipeline", WORDS[name], raw, tokenizer, out]


def our_result(out: Path) -> dict[str, Any]:
    """Ids behind the rules and behind MinHash, and tokens."""
    rows = [row for path in (out / "signals").glob("*.parquet") for row in _rows(path, ["id", "reason"])]
    kept = {row["id"] for path in (out / "documents").rglob("*.parquet") for row in _rows(path, ["id"])}
    near = {row["id"] for row in rows if row["reason"] == "near duplicate"}
    tokens = sum(path.stat().st_size for path in (out / "tokens").rglob("*.bin")) // 2
    return {"behind_rules": kept | near, "kept": kept, "tokens": tokens}


def _rows(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    return pq.read_table(path, columns=columns).to_pylist()


def their_result(out: Path) -> dict[str, Any]:
    """The same of datatrove."""
    paths = (out / "filtered").iterdir()
    behind_rules = {json.loads(line)["id"] for path in paths for line in path.read_text().splitlines()}
    tokens = sum(path.stat().st_size for path in (out / "tokens").glob("*.ds")) // 2
    return {"behind_rules": behind_rules, "kept": set(json.loads((out / "kept.json").read_text())), "tokens": tokens}


def compared(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How many documents one or both keep."""
    found: dict[str, Any] = {"tokens": [mine["tokens"], other["tokens"]]}
    for stage in STAGES:
        one, two = mine[stage], other[stage]
        found[stage] = {"ours": len(one), "theirs": len(two), "both": len(one & two)}
    return found


def measure(folder: Path, whole: dict[str, float], samples: dict[str, dict[str, float]], rounds: int) -> dict[str, Any]:
    """Rounds in turn; stock datatrove once on each sample: the line through both gives its time for all."""
    raw = folder / "raw"
    cpu_seconds(*ours(raw, folder / "first", None))
    tokenizer = folder / "first" / "tokenizer" / "tokenizer.json"
    times: dict[str, list[float]] = {OURS: [], LOGIC: []}
    for number in range(rounds):
        times[OURS].append(cpu_seconds(*ours(raw, folder / f"ours{number}", tokenizer)))
        times[LOGIC].append(cpu_seconds(theirs(LOGIC, raw, folder / f"logic{number}", tokenizer)))
    few, many = (_sampled(folder, part, tokenizer) for part in samples)
    sizes = [each["megabytes"] for each in samples.values()]
    rest = whole["megabytes"] - sizes[0]
    times[STOCK] = [few[STOCK] + (many[STOCK] - few[STOCK]) * rest / (sizes[1] - sizes[0])]
    medians = {name: statistics.median(values) for name, values in times.items()}
    beyond = {name: rest / (seconds - few[name]) for name, seconds in medians.items()}
    ratios = [other / mine for mine, other in zip(times[OURS], times[LOGIC], strict=True)]
    result = our_result(folder / "ours0")
    return {
        "cpu_seconds": times,
        "samples_cpu_seconds": {"few": few, "sample": many},
        "megabytes_per_cpu_second": {name: whole["megabytes"] / seconds for name, seconds in medians.items()},
        "times": {LOGIC: statistics.median(ratios), STOCK: medians[STOCK] / medians[OURS]},
        "times_range": [min(ratios), max(ratios)],
        "megabytes_per_cpu_second_beyond_few": beyond,
        "times_beyond_few": {name: beyond[OURS] / beyond[name] for name in WORDS},
        "documents_kept": {
            LOGIC: compared(result, their_result(folder / "logic0")),
            STOCK: compared(our_result(folder / "ours-sample"), their_result(folder / "stock-sample")),
        },
    }


def _sampled(folder: Path, part: str, tokenizer: Path) -> dict[str, float]:
    """CPU seconds of all three on a sample."""
    raw = folder / part
    return {
        OURS: cpu_seconds(*ours(raw, folder / f"ours-{part}", tokenizer)),
        LOGIC: cpu_seconds(theirs(LOGIC, raw, folder / f"logic-{part}", tokenizer)),
        STOCK: cpu_seconds(theirs(STOCK, raw, folder / f"stock-{part}", tokenizer)),
    }


def run(quick: bool = False) -> dict[str, Any]:
    """All of it; written to results/refinery_pipeline.json unless quick."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = write_raw(folder / "raw", 20 if quick else 1)
        samples = {part: write_raw(folder / part, every * (4 if quick else 1)) for part, every in SAMPLES.items()}
        found = measure(folder, whole, samples, 1 if quick else ROUNDS)
    figures = {"load_average": [load, os.getloadavg()[0]], **whole, "samples": samples, "steps": STEPS, **found}
    show(figures)
    if not quick:
        print(f"written: {write('refinery_pipeline', figures)}")
    return figures


def show(figures: dict[str, Any]) -> None:
    """Tables."""
    print(f"{figures['documents']} documents, {figures['megabytes']:.1f} MB; stock: {figures['samples']['sample']}")
    times = {OURS: 1.0} | figures["times"]
    beyond, more = figures["megabytes_per_cpu_second_beyond_few"], {OURS: 1.0} | figures["times_beyond_few"]
    rows = [
        [name, rate, times[name], beyond[name], more[name]]
        for name, rate in figures["megabytes_per_cpu_second"].items()
    ]
    print(table(["", "MB / CPU s", "ours is x", "beyond the start", "ours is x"], rows))
    kept = [
        [name, stage, *found[stage].values(), *found["tokens"]]
        for name, found in figures["documents_kept"].items()
        for stage in STAGES
    ]
    print(table(["beside", "stage", "ours", "theirs", "both", "our tokens", "their tokens"], kept))
    print(figures["cpu_seconds"], figures["samples_cpu_seconds"])


if __name__ == "__main__":
    run("--quick" in sys.argv)
