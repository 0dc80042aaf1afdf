"""hornbook itself: `train` and `eval` of the recipe beside this file, which `train.seconds` ends."""

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget.scripts import settled
from benchmarks.gpu.budget.text import Text, hornbook
from benchmarks.gpu.budget.trial import Budget, Figures

RECIPE = Path(__file__).with_name("recipe.toml")
BATCH = 2**17
"""Tokens of a step, which the recipe states."""
TRIAL = 16
"""Steps of the trial."""
DRY = {"model.layers": 2, "model.width": 64, "model.heads": 2, "model.mlp.hidden": 128, "model.position.length": 64}
DRY |= {"train.sequence": 64, "train.micro_batch": 8, "train.batch_tokens": 1024, "train.compile": "false"}
DRY |= {"train.precision": "auto", "train.device": "cpu"}


def train(folder: Path, data: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """A run in a folder of its own; the lines of its metrics."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    hornbook("train", RECIPE, "--data", data, "--out", folder, *words)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of training steps."""
    return [line for line in lines if "step_tokens" in line]


def measure(folder: Path, text: Text, budget: Budget, figures: Figures) -> None:
    """A trial that compiles and tells the time of a step; then as many steps as fit, and the held-out text."""
    batch = DRY["train.batch_tokens"] if budget.dry else BATCH
    common: dict[str, Any] = dict(DRY) if budget.dry else {}
    common |= {"model.vocab": text.vocab}
    if "step_seconds" not in figures.known:
        found = steps(train(folder / "trial", text.folder, common | {"train.tokens": TRIAL * batch}))
        figures.add(step_seconds=settled([each["seconds"] for each in found]))
    count = max(int(budget.seconds / figures.known["step_seconds"]), 2)
    common |= {"train.tokens": count * batch, "train.seconds": budget.seconds}
    found = steps(train(folder / "run", text.folder, common))
    scored = json.loads(hornbook("eval", folder / "run"))
    figures.add(
        steps=len(found),
        tokens=found[-1]["tokens"],
        train_seconds=sum(each["seconds"] for each in found),
        loss=scored["loss"],
        bits_per_byte=scored["bits_per_byte"],
        held_out_tokens=scored["tokens"],
    )
