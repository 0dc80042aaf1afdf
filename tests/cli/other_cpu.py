"""Run by test_other_cpu.py as a process that sees AVX2 alone: `python -m tests.cli.other_cpu FOLDER TEXT` does what a
person does, in FOLDER, and prints one JSON object with what came of it."""

import json
import shutil
import sys
from pathlib import Path

import torch

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.model.layers.precision import choose_precision

SMALL = (
    *("--model.layers", "1", "--model.width", "64", "--model.heads", "2", "--train.sequence", "64"),
    *("--train.batch_tokens", "512", "--train.tokens", "5120", "--train.micro_batch", "4", "--train.threads", "1"),
    *("--optim.schedule.warmup", "2 steps", "--checkpoint.every", "4", "--eval.every", "0", "--seed", "3"),
)
"""Of the recipe `tiny`: ten short steps."""


def hornbook(*words: str | Path) -> None:
    """One command, which must succeed."""
    code = main([*map(str, words)])
    assert code == Exit.DONE, f"{words} ended with {code}"


def losses(run: Path) -> list[float]:
    """Of every step that counts."""
    return [record["loss"] for record in current_branch(read_records(RunDir(run).metrics))]


def resumed(run: Path) -> list[float]:
    """The losses of a copy that lost all behind step 4 and went on from there."""
    copy = run.with_name("resumed")
    shutil.copytree(run, copy)
    for step in (8, 10):
        shutil.rmtree(copy / f"checkpoints/step-{step:08}")
    hornbook("resume", copy)
    return losses(copy)


def act(folder: Path, text: Path) -> dict[str, object]:
    """Prepare, tokenize, train in both precisions, resume, export."""
    data, run, narrow = folder / "data", folder / "run", folder / "narrow"
    hornbook("prepare", text, "--out", data)
    hornbook("tokenize", data, "--vocab", "300")
    hornbook("train", "tiny", "--data", data, "--out", run, *SMALL)
    hornbook("train", "tiny", "--data", data, "--out", narrow, *SMALL, "--train.precision", "bf16")
    hornbook("export", run, "--to", "hf", "--out", folder / "model")
    return {
        "sees": torch.backends.cpu.get_cpu_capability(),
        "auto": choose_precision(torch.device("cpu")),
        "losses": losses(run),
        "bf16": losses(narrow),
        "resumed": resumed(run),
        "certificate": json.loads((folder / "model/certificate.json").read_text())["ok"],
    }


if __name__ == "__main__":
    print(json.dumps(act(Path(sys.argv[1]), Path(sys.argv[2]))))
