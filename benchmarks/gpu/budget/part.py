"""A fixed budget: one contender trains for five minutes, and its held-out bits per byte are told.

Text and tokenizer are the same for all (`text.py`), and so is the time of training steps: a short trial compiles and
tells the time of a step, then as many steps are made as fit. hornbook's time has its start-up within it.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.contenders.peers_here import find
from benchmarks.gpu.budget import modded, nanochat, nanogpt, ours
from benchmarks.gpu.budget.text import ROOT, LeftOut, make
from benchmarks.gpu.budget.trial import DRY_SECONDS, SECONDS, Budget, Figures
from benchmarks.gpu.parts import LEFT_OUT
from benchmarks.gpu.worker import begin

PEERS = {"nanoGPT": nanogpt.measure, "nanochat": nanochat.measure, "modded-nanogpt": modded.measure}
FOLDER = ROOT / "build" / "gpu-budget"
"""Text and runs; the text is kept for the next contender."""


def main() -> int:
    """The contender of the specification; `LEFT_OUT` where it or the text is missing, or a peer's script fails."""
    output, spec, _ = begin()
    before = {name: each for name, each in output.before.items() if name not in ("left_out", "problem")}
    figures = Figures(before, output.write)
    try:
        with ExitStack() as stack:
            dry = spec["dry_run"]
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if dry else FOLDER
            measure(spec["contender"], folder, Budget(DRY_SECONDS if dry else SECONDS, dry), figures)
    except RuntimeError as problem:
        if spec["contender"] not in PEERS:
            raise
        figures.add(problem=str(problem)[-4000:])
        print(problem)
        return LEFT_OUT
    except LeftOut as reason:
        figures.add(left_out=str(reason))
        print(reason)
        return LEFT_OUT
    print({name: each for name, each in figures.known.items() if name != "text"})
    return 0


def measure(name: str, folder: Path, budget: Budget, figures: Figures) -> None:
    """One contender in its folder."""
    found = find(name) if name in PEERS else None
    if found is not None and found.missing:
        raise LeftOut(found.missing)
    text = make(folder, budget.dry)
    figures.add(text=facts(text), seconds=budget.seconds)
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    if found is None:
        ours.measure(place, text, budget, figures)
    else:
        figures.add(version=found.version)
        PEERS[name](place, text, budget, figures, found)


def facts(text: Any) -> dict[str, Any]:
    """What was trained on and scored."""
    parts = {"train": text.train, "held_out": text.held_out}
    sizes = {
        f"{name}_{key}": value
        for name, each in parts.items()
        for key, value in (("tokens", len(each.tokens)), ("bytes", each.bytes))
    }
    return {"vocab": text.vocab, **sizes}


if __name__ == "__main__":
    sys.exit(main())
