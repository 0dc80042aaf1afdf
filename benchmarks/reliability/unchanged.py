"""The same results from two versions of the package: what a change of form alone must leave as it was.

    python -m benchmarks.reliability.unchanged REVISION

Prepares, tokenizes and trains every small recipe for some steps with the package of a revision and with that of the
working tree, on the same text. Compared to the bit: documents, signals and tokens on disk, losses, gradient norms and
token hashes of every step, weights and moments. Then the working tree verifies and resumes the other's runs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import report
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.text.ingest.corpora.installed import write_installed_corpus
from hornbook.text.ingest.corpora.installed_labels import write_passages

ROOT = Path(__file__).parents[2]
RECIPES = [name for name in shipped_recipes() if name.startswith("tiny")]
LABELLED = "tiny-classify"
BYTES, TOKENS = 1_500_000, 24_000
STEPS = """
[text]
steps = [
  { kind = "repair" }, { kind = "normalize" }, { kind = "c4_lines" }, { kind = "personal" },
  { kind = "drop_empty" }, { kind = "gopher_quality" }, { kind = "gopher_repetition" }, { kind = "fineweb" },
  { kind = "code" }, { kind = "language", detector = "script" }, { kind = "exact_dedup" }, { kind = "near_dedup" },
  { kind = "line_dedup" }, { kind = "paragraph_dedup" }, { kind = "span_dedup" },
]
"""
"""A recipe of many steps of the refinery."""
MEASURED = ("step", "loss", "grad_norm", "lr", "tokens", "token_hash")
"""Of each record of metrics.jsonl."""


def hornbook(source: Path, *words: object) -> str:
    """Run a command of the package in `source`; its output. Raises CalledProcessError."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "hornbook", *map(str, words)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def checkout(revision: str, folder: Path) -> Path:
    """The `src` of a revision, as a copy in `folder`."""
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder / "src"


def make(source: Path, name: str, recipe: object, raw: Path, folder: Path) -> None:
    """Data and a run of one recipe; the refinery's recipe has data alone."""
    hornbook(source, "prepare", recipe, raw, "--out", folder / name / "data")
    hornbook(source, "tokenize", folder / name / "data")
    if recipe == name:
        words = ("--data", folder / name / "data", "--out", folder / name / "run", "--train.tokens", TOKENS)
        hornbook(source, "train", name, *words, "--train.threads", 2)


def resume(source: Path, name: str, folder: Path) -> None:
    """Verify a run and train it for as long again."""
    hornbook(source, "verify", folder / name / "run")
    hornbook(source, "resume", folder / name / "run", "--train.tokens", 2 * TOKENS)


def facts(folder: Path) -> dict[str, Any]:
    """Name -> digest of each file that must not change, and the records of each step."""
    found: dict[str, Any] = {}
    for path in sorted(_kept(folder)):
        found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    if (metrics := folder / "run" / "metrics.jsonl").exists():
        for line in metrics.read_text().splitlines():
            record = json.loads(line)
            found[f"step {record['step']}"] = [record.get(key) for key in MEASURED]
    return found


def _kept(folder: Path) -> Iterator[Path]:
    for pattern in ("documents/**/*.parquet", "signals/*.parquet", "tokens/**/*.bin", "tokens/**/*.idx", "funnel.json"):
        yield from (folder / "data").glob(pattern)
    yield from (folder / "data" / "tokenizer").glob("*.json")
    yield from (folder / "run" / "checkpoints").glob("step-*/**/*.safetensors")


def compare(folders: tuple[Path, Path], name: str) -> tuple[int, list[str]]:
    """(number of facts, names of those that differ or are on one side alone)."""
    one, other = (facts(folder / name) for folder in folders)
    return len(one), [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]


def run(revision: str) -> None:
    """Make everything twice, compare, resume, compare again; print and write what differs."""
    rows, names = [], [*RECIPES, "refinery"]
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        before = checkout(revision, base)
        write_installed_corpus(base / "raw", max_bytes=BYTES, seed=0)
        (base / "refinery.toml").write_text(STEPS)
        passages, sources = write_passages(base / "raw"), (before, ROOT / "src")
        folders = base / "before", base / "now"
        for name in names:
            raw = passages if name == LABELLED else base / "raw" / "docstrings.jsonl"
            recipe = base / "refinery.toml" if name == "refinery" else name
            for source, folder in zip(sources, folders, strict=True):
                make(source, name, recipe, raw, folder)
            count, different = compare(folders, name)
            if name in RECIPES:
                for folder in folders:
                    resume(sources[1], name, folder)
                more, later = compare(folders, name)
                count, different = count + more, [*different, *(f"resumed: {key}" for key in later)]
            rows.append((name, count, len(different)))
            print(name, count, *different[:5], flush=True)
            report.write("unchanged", {"revision": revision, "recipes": {name: counts for name, *counts in rows}})
    print(report.table(["recipe", "compared", "different"], rows))


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description="Compare the results of two versions of the package.")
    parser.add_argument("revision", help="commit of the version to compare with")
    run(parser.parse_args().revision)


if __name__ == "__main__":
    main()
