"""Weights rounded and taken out, with text that shows what they matter for and without it, with three seeds.

    python -m benchmarks.adapt.rounded [--quick]

A model of four layers is trained on the documentation of git (../shared/data), one per seed, and then written as
integers, to nearest or with calibration on rows of its training text (GPTQ), and with zeros, of the least weights or of
the least weights times the norms of their inputs (Wanda). What each loses on held-out text is in nats per token; means
with 95 % intervals (Student's t over seeds). What is measured stands in benchmarks/results/rounded.json, whatever it
shows.
"""

import argparse
import time
from pathlib import Path

from benchmarks.adapt.continual import COSINE, GENERAL, SHAPE, hornbook
from benchmarks.adapt.smaller import TEACHER, TEACHER_TOKENS, by_seed
from benchmarks.report import write
from hornbook.cli.model.sample_text import SampleText
from hornbook.run.checkpoints.path import checkpoint_path
from hornbook.run.diagnose.transfer import SeedMean

FORMS = ("int8", "int4-group32", "int3-group32")
PATTERNS = ("2:4", "0.5")


def measure(folder: Path, data: Path, seed: int, scale: int) -> dict[str, float]:
    """Losses of one seed by what was done to the model."""
    run = folder / "run"
    length = f"train.tokens={TEACHER_TOKENS // scale}"
    hornbook("train", *SHAPE, *TEACHER, *COSINE, length, f"seed={seed}", "--data", data, "--out", run)
    text = SampleText(checkpoint_path(run), data)
    found = {"as trained": text.measure(checkpoint_path(run))["loss"]}

    def made(name: str, *words: object) -> None:
        out = folder / name.replace(" ", "-").replace(",", "")
        hornbook(*words, "--out", out)
        found[name] = text.measure(out)["loss"]

    for form in FORMS:
        made(f"{form}, to nearest", "export", run, "--quantize", form)
        calibrated = ("export", run, "--quantize", form, "--calibrate", data)
        made(f"{form}, calibrated", *calibrated)
        made(f"{form}, calibrated, largest inputs first", *calibrated, "--act-order")
    for pattern in PATTERNS:
        for score in ("magnitude", "wanda"):
            made(f"{pattern}, {score}", "prune", run, "--sparse", pattern, "--score", score)
    return found


def run(*, quick: bool = False) -> None:
    """Measure, print and write."""
    started = time.monotonic()
    seeds = by_seed(measure, quick=quick)
    names = list(seeds[0])
    lost = {name: SeedMean.of([found[name] - found["as trained"] for found in seeds]) for name in names[1:]}
    for name, mean in lost.items():
        print(f"{name:>44}  loses {mean.text}")
    if not quick:
        figures = {
            name: {"lost": mean.as_dict(), "seeds": [each[name] for each in seeds]} for name, mean in lost.items()
        }
        settings = {"text": GENERAL, "tokens": TEACHER_TOKENS, "as trained": [each["as trained"] for each in seeds]}
        write("rounded", {**settings, "seconds": round(time.monotonic() - started, 1), "models": figures})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="A run of an eighth of the length; nothing is written.")
    run(quick=parser.parse_args().quick)
