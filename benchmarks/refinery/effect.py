"""What refining is worth: the same small model trained on raw and on refined text of one dirty corpus.

    nice -n 10 python -m benchmarks.refinery.effect [--folder PATH]

`dirty_corpus` makes three corpora of the same documents: `raw`, with dirt in stated shares; `refined`, which is raw
behind the steps of docs/refinery.md; `clean`, the documents without dirt, which no refinery can hope to surpass by
much. All are read with the tokenizer of the raw text and trained for the same number of tokens with the tiny recipe,
so whoever holds more good text in them wins. Measured in bits per byte of documents that were held out before, of
which no corpus has copies. Seeds draw weights and the order of documents, and are compared in pairs. With --folder, a
run that is there is not trained again.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.refinery.dirty_corpus import MARKS, PAGES, Corpus, Page, make_corpus
from benchmarks.report import table, write

CLEAN_BYTES, HELD_OUT_BYTES = 5_000_000, 500_000
TOKENS, VOCAB = 1_228_800, 4096
"""About one pass over the refined text; `results` say how many."""
SEEDS = (0, 1, 2)
STUDENT = 4.302653
"""97.5 % quantile of Student's t with two degrees of freedom, for three seeds."""
PLAIN = 'text.steps=[{kind="normalize"}, {kind="drop_empty"}]'
REFINED = (
    'text.steps=[{kind="normalize"}, {kind="repair"}, {kind="boilerplate"}, {kind="drop_empty"}, {kind="exact_dedup"}, '
    '{kind="language", keep=["en"]}, {kind="gopher_quality", words="unicode", min_words=20}, '
    '{kind="gopher_repetition", words="unicode"}, {kind="near_dedup"}, {kind="line_dedup"}]'
)
"""The example of docs/refinery.md with the steps of its table that are about such dirt; words as docs/rules.md advises
for text with code. `language` needs the extra `lang`."""
STEPS = {"raw": PLAIN, "refined": REFINED, "clean": PLAIN}
HORNBOOK = (sys.executable, "-m", "hornbook")


def write_pages(path: Path, pages: Sequence[Page]) -> None:
    """JSON lines; an id says what kind a page is."""
    rows = [{"id": f"{number}:{page.source}", "text": page.text} for number, page in enumerate(pages)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_corpus(folder: Path, corpus: Corpus) -> None:
    """Inputs of both forms, and of the held-out documents of each source."""
    write_pages(folder / "raw.jsonl", corpus.raw)
    write_pages(folder / "clean.jsonl", corpus.clean)
    (folder / "held-out").mkdir(exist_ok=True)
    for source in sorted({page.source for page in corpus.held_out}):
        pages = [page for page in corpus.held_out if page.source == source]
        write_pages(folder / "held-out" / f"{source.partition('.')[0]}.jsonl", pages)


def run_command(*words: object) -> str:
    """Run hornbook on one core; what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*HORNBOOK, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3600, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def prepare(folder: Path) -> dict[str, Any]:
    """All corpora as tokens of the tokenizer of the raw one; how large they are."""
    tokenizer, sizes = folder / "data-raw" / "tokenizer", {}
    for name, steps in STEPS.items():
        out = folder / f"data-{name}"
        source = folder / ("clean.jsonl" if name == "clean" else "raw.jsonl")
        run_command("prepare", source, "--out", out, "--workers", 1, "--text.validation", 0, steps)
        made = ("--vocab", VOCAB) if name == "raw" else ("--tokenizer", tokenizer)
        run_command("tokenize", out, "--workers", 1, *made)
        tokens = sum(path.stat().st_size for path in (out / "tokens").rglob("*.bin")) // 2
        sizes[name] = {"documents": 0, "megabytes": 0.0, "tokens": tokens, "passes": TOKENS / tokens}
        for documents in (out / "documents").rglob("*.parquet"):
            column = pq.read_table(documents, columns=["bytes"])["bytes"].to_pylist()
            sizes[name]["documents"] += len(column)
            sizes[name]["megabytes"] += sum(column) / 1e6
    return sizes


def left_by_kind(folder: Path, corpus: Corpus) -> dict[str, dict[str, float]]:
    """Kind of page -> its share of the raw bytes, and the part of its bytes that refining left."""
    left = dict.fromkeys(["good pages", *PAGES], 0)
    before = dict(left)
    for page in corpus.raw:
        before[page.source] += page.size
    for path in (folder / "data-refined" / "documents").rglob("*.parquet"):
        for row in pq.read_table(path, columns=["id", "bytes"]).to_pylist():
            left[row["id"].partition(":")[2]] += row["bytes"]
    total = sum(before.values())
    return {kind: {"share": size / total, "left": left[kind] / size} for kind, size in before.items()}


def train(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """One run, scored on the held-out documents."""
    run, started = folder / f"run-{name}-{seed}", time.monotonic()
    often = ("--eval.every", 0, "--checkpoint.every", 0)
    settings = ("--seed", seed, "--train.tokens", TOKENS, "--train.threads", 1, *often)
    run_command("train", "tiny", "--data", folder / f"data-{name}", "--out", run, *settings)
    files = [word for path in sorted((folder / "held-out").iterdir()) for word in ("--data", path)]
    scores = json.loads(run_command("eval", run, *files, "--json"))
    sources = {source: each["bits_per_byte"] for source, each in scores["sources"].items()}
    found = {"bits_per_byte": scores["bits_per_byte"], "sources": sources, "bytes": scores["bytes"]}
    print(f"{name} {seed}: {found['bits_per_byte']:.4f} ({time.monotonic() - started:.0f} s)", flush=True)
    return found


def compared(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Mean of one - other over the seeds, and half the width of its 95 % interval (Student's t of pairs)."""
    pairs = [a - b for a, b in zip(one, other, strict=True)]
    return {"mean": statistics.mean(pairs), "half": STUDENT * statistics.stdev(pairs) / math.sqrt(len(pairs))}


def measure(folder: Path) -> dict[str, Any]:
    """Make the corpora, train all runs, seed by seed."""
    corpus = make_corpus(CLEAN_BYTES, HELD_OUT_BYTES)
    write_corpus(folder, corpus)
    sizes, kinds = prepare(folder), left_by_kind(folder, corpus)
    print(json.dumps({"sizes": sizes, "kinds": kinds}, indent=1), flush=True)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in STEPS}
    for seed in SEEDS:
        for name in STEPS:
            found[name].append(train(folder, name, seed))
    bits = {name: [each["bits_per_byte"] for each in runs] for name, runs in found.items()}
    return {
        "tokens": TOKENS,
        "seeds": SEEDS,
        "steps": REFINED,
        "held_out": {"documents": len(corpus.held_out), "bytes": found["raw"][0]["bytes"]},
        "marks": MARKS,
        "kinds": kinds,
        "corpora": sizes,
        "bits_per_byte": bits,
        "sources": {name: [each["sources"] for each in runs] for name, runs in found.items()},
        "differences": {f"raw - {name}": compared(bits["raw"], bits[name]) for name in ("refined", "clean")},
    }


def show(figures: dict[str, Any]) -> None:
    """Tables."""
    rows = [[name, *size.values(), *figures["bits_per_byte"][name]] for name, size in figures["corpora"].items()]
    print(table(["", "documents", "MB", "tokens", "passes", *(f"seed {seed}" for seed in SEEDS)], rows))
    for name, each in figures["differences"].items():
        print(f"{name}: {each['mean']:.4f} +- {each['half']:.4f} bits per byte")


def run(folder: Path | None = None) -> dict[str, Any]:
    """All of it; writes benchmarks/results/refinery_effect.json."""
    if folder is None:
        with tempfile.TemporaryDirectory() as name:
            return run(Path(name))
    folder.mkdir(parents=True, exist_ok=True)
    figures = measure(folder)
    show(figures)
    print(f"written: {write('refinery_effect', figures)}")
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    run(parser.parse_args().folder)
