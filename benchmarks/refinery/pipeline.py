"""From raw text to shards of tokens: `hornbook prepare` and `hornbook tokenize` beside datatrove and tokenizers.

The raw text is real documents in one JSON-lines file for each source, with copies planted among them, as they are and
edited. All do the same work with the same tokenizer.json: Unicode form, exact copies, rules of Gopher and FineWeb, near
duplicates by MinHash (14 bands of 8, 5-word shingles), tokens on disk. One worker and one thread each, whole commands
in turn, CPU seconds of all their processes, start and imports too; compiled code is in its cache, because a first run
trains the tokenizer. datatrove 0.10.1 in two forms: as it is, with spaCy's words, on samples since it is slow, and its
logic with words between blanks, which are ours too.

    python -m benchmarks.refinery.pipeline [--quick]
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
from benchmarks.report import show

DATA = ROOT.parent / "shared" / "data"
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
ROUNDS, VOCAB = 3, 32_768
SAMPLES = {"few": 200, "sample": 10}
"""Stock datatrove gets every so manieth document: few for what its start costs, and as many as it can do in minutes."""
STAGES = ("behind_rules", "kept")
ENVIRONMENT = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # bytecode is kept, as that of installed packages is
}


def edited(text: str, share: float, rng: np.random.Generator) -> str:
    """Replace, delete or double each word with the probability `share`; blanks stay single."""
    words = text.split(" ")
    changes = np.where(rng.random(len(words)) < share, rng.integers(1, 4, len(words)), 0).tolist()
    others = rng.integers(0, len(words), len(words)).tolist()
    changed_words = []
    for word, change, other in zip(words, changes, others, strict=True):
        changed_words += {0: [word], 1: [words[other] + "ly"], 2: [], 3: [word, words[other]]}[change]
    return " ".join(changed_words)


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
    """Everything once a round, so that a slow hour is slow for all; ratios are medians of those of the rounds."""
    cpu_seconds(*ours(folder / "raw", folder / "first", None))
    tokenizer = folder / "first" / "tokenizer" / "tokenizer.json"
    sizes = {"raw": whole["megabytes"]} | {part: each["megabytes"] for part, each in samples.items()}
    times = [{part: _once(folder, part, str(number), tokenizer) for part in sizes} for number in range(rounds)]
    for each in times:
        each["raw"][STOCK] = _extrapolated(each["few"][STOCK], each["sample"][STOCK], sizes)
    beyond = [{name: each["raw"][name] - each["few"][name] for name in each["raw"]} for each in times]
    result = our_result(folder / f"{OURS}-raw-0")
    return {
        "cpu_seconds": times,
        "megabytes_per_cpu_second": _rates(sizes["raw"], [each["raw"] for each in times]),
        "times": _times([each["raw"] for each in times]),
        "megabytes_per_cpu_second_beyond_few": _rates(sizes["raw"] - sizes["few"], beyond),
        "times_beyond_few": _times(beyond),
        "documents_kept": {
            LOGIC: compared(result, their_result(folder / f"{LOGIC}-raw-0")),
            STOCK: compared(our_result(folder / f"{OURS}-sample-0"), their_result(folder / f"{STOCK}-sample-0")),
        },
    }


def _once(folder: Path, part: str, number: str, tokenizer: Path) -> dict[str, float]:
    """CPU seconds of each on a part of the documents; stock datatrove on the samples only."""
    raw = folder / part
    found = {OURS: cpu_seconds(*ours(raw, folder / f"{OURS}-{part}-{number}", tokenizer))}
    for name in WORDS if part in SAMPLES else [LOGIC]:
        found[name] = cpu_seconds(theirs(name, raw, folder / f"{name}-{part}-{number}", tokenizer))
    return found


def _extrapolated(few: float, sample: float, sizes: dict[str, float]) -> float:
    """Seconds of all documents, on the line through both samples."""
    return few + (sample - few) * (sizes["raw"] - sizes["few"]) / (sizes["sample"] - sizes["few"])


def _rates(megabytes: float, seconds: list[dict[str, float]]) -> dict[str, float]:
    """Of each the median."""
    return {name: megabytes / statistics.median(each[name] for each in seconds) for name in seconds[0]}


def _times(seconds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """How often ours is the others' speed: median, least and most of the rounds."""
    found = {name: [each[name] / each[OURS] for each in seconds] for name in WORDS}
    return {
        name: {"median": statistics.median(each), "least": min(each), "most": max(each)} for name, each in found.items()
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
    show("refinery_pipeline", figures, keep=not quick)
    return figures


if __name__ == "__main__":
    run("--quick" in sys.argv)
