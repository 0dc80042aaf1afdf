"""Small models: from scratch, distilled, and pruned from a larger one, with three seeds.

    python -m benchmarks.adapt.smaller [--quick]

A model of four layers is trained on the documentation of git (../shared/data), one per seed. Then, for one of two
layers and half the heads and MLP channels:

    scratch             trained on the same text; once for as many tokens as the others, once for twice as many, which
                        is about the compute of distillation with the teacher's forward pass
    distilled           from initial values, with the larger model as teacher
    pruned              the larger model cut down by importance, before any training
    pruned, healed      the same trained on the text alone
    pruned, distilled   the same trained with the larger model as teacher

Losses are on held-out text, in nats per token; means with 95 % intervals (Student's t over seeds). What is measured
stands in benchmarks/results/smaller.json, whatever it shows.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.adapt.continual import COSINE, DATA, GENERAL, SEEDS, SHAPE, hornbook
from benchmarks.report import write
from hornbook.run.diagnose.transfer import SeedMean

TEACHER = ("model.layers=4", "model.heads=4", "model.width=64", "model.mlp.hidden=192")
STUDENT = ("model.layers=2", "model.heads=2", "model.width=64", "model.mlp.hidden=96", "model.attention.head_dim=16")
CUT = ("--layers", 2, "--heads", 2, "--hidden", 96, "--rows", 32)
TEACHER_TOKENS, TOKENS = 655_360, 163_840
QUICK = 8
"""With --quick, runs have one token in so many."""


def loss(run: Path, *, first: bool = False) -> float:
    """Held-out loss of a run after its last step, or before its first, on the same rows."""
    records = sorted((run / "evals").glob("step-*.json"))
    return float(json.loads(records[0 if first else -1].read_text())["all"]["loss"])


def measure(folder: Path, data: Path, seed: int, scale: int) -> dict[str, float]:
    """Losses of one seed by model."""

    def train(name: str, tokens: int, *words: object) -> Path:
        run = folder / name
        length = f"train.tokens={tokens // scale}"
        hornbook("train", *SHAPE, *COSINE, length, f"seed={seed}", "--data", data, "--out", run, *words)
        return run

    base, small = train("teacher", TEACHER_TOKENS, *TEACHER), folder / "small"
    teacher = ("train.loss.teacher.kind=top", f"train.loss.teacher.path={base}")
    hornbook("prune", base, *CUT, "--out", small)
    # SHAPE gives layers, width and heads, which a model that is started from has itself.
    start = ("--from", small, *STUDENT)
    healed = train("healed", TOKENS, *start)
    runs = {
        "larger model": base,
        "scratch": train("scratch", TOKENS, *STUDENT),
        "scratch, twice the tokens": train("scratch-2", 2 * TOKENS, *STUDENT),
        "distilled": train("distilled", TOKENS, *STUDENT, *teacher),
        "pruned, healed": healed,
        "pruned, distilled": train("both", TOKENS, *start, *teacher),
    }
    return {"pruned": loss(healed, first=True)} | {name: loss(run) for name, run in runs.items()}


def by_seed(measure: Callable[[Path, Path, int, int], dict[str, float]], *, quick: bool) -> list[dict[str, float]]:
    """What `measure` finds with a folder, the text, a seed and a divisor of the tokens, for each seed."""
    started, seeds = time.monotonic(), list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        hornbook("prepare", DATA / f"{GENERAL}.jsonl.gz", "--out", data, "--text.validation", 0.02)
        hornbook("tokenize", data, "--vocab", "1024")
        for seed in SEEDS:
            seeds.append(measure(Path(temporary) / f"seed-{seed}", data, seed, QUICK if quick else 1))
            print(f"seed {seed} after {time.monotonic() - started:.0f} s", flush=True)
    return seeds


def run(*, quick: bool = False) -> None:
    """Measure, print and write."""
    started = time.monotonic()
    seeds = by_seed(measure, quick=quick)
    means = {name: SeedMean.of([found[name] for found in seeds]) for name in seeds[0]}
    gains = {name: SeedMean.of([found["scratch"] - found[name] for found in seeds]) for name in seeds[0]}
    for name, mean in means.items():
        print(f"{name:>26}  {mean.text}  better than scratch by {gains[name].text}")
    if not quick:
        figures = {
            name: {"loss": mean.as_dict(), "gain": gains[name].as_dict(), "seeds": [found[name] for found in seeds]}
            for name, mean in means.items()
        }
        settings = {"text": GENERAL, "teacher_tokens": TEACHER_TOKENS, "tokens": TOKENS}
        write("smaller", {**settings, "seconds": round(time.monotonic() - started, 1), "models": figures})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="Runs of an eighth of the length; nothing is written.")
    run(quick=parser.parse_args().quick)
