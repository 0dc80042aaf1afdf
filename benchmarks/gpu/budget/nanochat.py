"""nanochat's scripts.base_train on the same tokens, at the depth of GPT-2 small, with its own bits per byte.

Its loader cuts and packs documents in its own way, and its evaluation does not count delimiters.
"""

import re
from pathlib import Path
from typing import Any

from benchmarks.contenders.peers_here import Found
from benchmarks.gpu.budget.files import write_nanochat
from benchmarks.gpu.budget.scripts import Script, last_number, settled
from benchmarks.gpu.budget.text import Text
from benchmarks.gpu.budget.trial import Budget, Figures
from benchmarks.peers.stand_in import EAGER

STEP = re.compile(r"^step \d+/\d+ .*\| dt: (?P<ms>[\d.,]+)ms")
WORDS = ("-m", "benchmarks.peers.stand_in", "", "-m", "scripts.base_train")
TRIAL = 16
SIZES = {"depth": 12, "max-seq-len": 1024, "device-batch-size": 32, "total-batch-size": 2**17}
DRY = {"depth": 2, "aspect-ratio": 32, "head-dim": 32, "max-seq-len": 64, "device-batch-size": 8}
DRY |= {"total-batch-size": 1024}
QUIET = {"window-pattern": "L", "core-metric-every": -1, "sample-every": -1}
"""Whole attention, as its script recommends without FlashAttention 3."""
NEVER = -1


def measure(folder: Path, text: Text, budget: Budget, figures: Figures, found: Found) -> None:
    """A trial that tells the time of a step; then as many steps as fit, and its evaluation of the held-out text."""
    sizes = DRY if budget.dry else SIZES
    write_nanochat(folder, text, sizes["max-seq-len"])
    script = Script(found.python, Path(found.home), WORDS, STEP)
    environ = {"NANOCHAT_BASE_DIR": str(folder)} | ({EAGER: "1"} if budget.dry else {})
    settings: dict[str, Any] = {**sizes, **QUIET, "device-type": "cpu" if budget.dry else "cuda"}
    if "step_seconds" not in figures.known:
        trial = settings | {"num-iterations": TRIAL, "eval-every": NEVER}
        figures.add(step_seconds=settled(script.seconds(script.run(words(trial), folder / "trial.log", environ))))
    count = max(int(budget.seconds / figures.known["step_seconds"]), 2)
    scored = len(text.held_out.tokens)
    lengths = {"num-iterations": count, "eval-every": count, "eval-tokens": scored}
    lines = script.run(words(settings | lengths), folder / "run.log", environ)
    seconds = script.seconds(lines)
    figures.add(
        steps=count,
        tokens=count * sizes["total-batch-size"],
        train_seconds=sum(seconds[1:]) + figures.known["step_seconds"],
        bits_per_byte=last_number(r"Validation bpb: ([\d.]+)", lines),
        held_out_tokens=scored,
    )


def words(settings: dict[str, Any]) -> list[str]:
    """Arguments of its parser."""
    return [f"--{key}={value}" for key, value in settings.items()]
