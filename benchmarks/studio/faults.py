"""Runs with one fault each, for `hornbook explore metrics`: trains them on this CPU and keeps their records.

    python -m benchmarks.studio.faults [FAULT ...]

Each run is the same small model on this repository's own text, 224 steps, with one thing wrong. Without names it trains
all of them in about four minutes; with names it replaces these in the file of the package. A run of the same version
has the same losses; times are those of the machine.
"""

import argparse
import gzip
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.reliability.guard.poison import poisoned
from benchmarks.reliability.guard.runs import VOCAB, prepare
from benchmarks.reliability.kill import finish, hornbook
from hornbook.data.loader.loader import Loader
from hornbook.errors import DivergedError
from hornbook.files.run_directory import RunDir
from hornbook.run.doctor.run_history import read_history
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve

STEPS, SEQUENCE, ROWS = 224, 64, 8
SMALL = (
    "model.layers=2",
    "model.width=64",
    "model.heads=2",
    f"train.sequence={SEQUENCE}",
    f"train.batch_tokens={SEQUENCE * ROWS}",
    f"train.micro_batch={ROWS}",
    f"train.tokens={STEPS * SEQUENCE * ROWS}",
    "train.precision=fp32",
    "train.device=cpu",
    "train.threads=1",
    "optim.lr=3e-3",
    "optim.schedule.warmup=20 steps",
    "checkpoint.every=0",
    "checkpoint.background=false",
    "eval.every=28",
    "eval.tokens=4096",
    "eval.prompt=",
    "log.every=1000",
    "log.statistics_every=14",
    "guard.mode=observe",  # nothing keeps a fault from doing what it does
)
STALL = 0.1
"""Seconds that a slow loader takes for a batch, in the mean."""
EXPERTS = ("model.mlp.kind=experts", "model.mlp.count=32", "model.mlp.active=1", "model.mlp.hidden=64")
REPEATED, CHARACTERS = 40, 1000
"""Documents of the repeated text, of which three tenths are trained on, and characters of each."""


@contextmanager
def stalling() -> Iterator[None]:
    """A loader that keeps a step waiting, as a disk over a network does."""
    take, draw = Loader.take, random.Random(0)

    def taking(self: Loader, *arguments: Any, **more: Any) -> Any:
        time.sleep(draw.expovariate(1 / STALL))
        return take(self, *arguments, **more)

    Loader.take = taking
    try:
        yield
    finally:
        Loader.take = take


@dataclass(frozen=True)
class Run:
    """A run with one thing wrong, or none."""

    about: str
    """What was done, and what to look at."""
    settings: tuple[str, ...] = ()
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    """What the loader does."""


FAULTS = {
    "healthy": Run("Nothing is wrong: 20 steps of warm-up to a rate of 0.003, then a cosine."),
    "rate-too-high": Run(
        "optim.lr = 1, without clipping. The loss rises far above that of the first step; when the rate has fallen, "
        "the model knows less than single tokens tell.",
        ("optim.lr=1", "optim.clip=0"),
    ),
    "no-warm-up": Run(
        "Four blocks whose norms come after the sum, as in the first Transformers (model.block.kind = post), with the "
        "full rate of 0.005 from the first step on. The loss stays where single tokens have it. With 60 steps of "
        "warm-up the same model ends at 4.07.",
        ("model.block.kind=post", "model.layers=4", "optim.lr=5e-3", "optim.schedule.warmup=0"),
    ),
    "bad-batch": Run(
        "Steps 151 and 152 hold random tokens. Loss and gradient norm jump in one step, and come back.",
        around=lambda: poisoned(range(150 * ROWS, 152 * ROWS)),
    ),
    "fp16-overflow": Run(
        "train.precision = fp16 with a rate of 1, which makes weights grow: values pass 65,504, the loss scale is "
        "halved again and again to no end, and the run stops.",
        ("train.precision=fp16", "optim.lr=1", "optim.clip=0", "log.statistics_every=7"),
    ),
    "repeated-data": Run(
        "12,000 characters are read over and over. The training loss falls on; the loss on held-out text turns "
        "and rises.",
        ("model.width=128", "optim.lr=1e-2"),
    ),
    "dead-experts": Run(
        "32 experts, a rate of 0.05 and no balance loss (model.mlp.balance_loss = 0): the router sends all "
        "tokens to few of them. The loss falls, only slower: without the share of idle experts nobody sees why.",
        (*EXPERTS, "model.mlp.balance_loss=0", "optim.lr=0.05"),
    ),
    "slow-loader": Run(
        "The loader takes 0.1 seconds for a batch in the mean. The loss is that of the healthy run; tokens/s are not.",
        around=stalling,
    ),
}
STEP_KEYS = ("attempt", "step", "tokens", "loss", "gradient_norm", "lr", "tokens_per_second", "seconds")
STEP_KEYS += ("data_seconds", "step_tokens", "first_sample", "num_samples", "skipped")
DIGITS = 5
RECORDED = Path(__file__).parents[2] / "src/hornbook/studio/explore/recorded_runs.json.gz"


def repeated(folder: Path) -> Path:
    """Data of so little text that the run reads it dozens of times."""
    texts = folder / "text"
    texts.mkdir(parents=True)
    page = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    for number in range(REPEATED):
        text = page[(number + 2) * CHARACTERS : (number + 3) * CHARACTERS]
        (texts / f"{number:02}.txt").write_text(text, encoding="utf-8")
    finish(hornbook("prepare", texts, "--out", folder / "data", "--text.validation", "0.7"))
    finish(hornbook("tokenize", folder / "data", "--vocab", str(VOCAB)))
    return folder / "data"


def record(name: str, data: Path, few: Path, folder: Path) -> dict[str, Any]:
    """Train the run of a fault, and give what the explorer needs of its records."""
    run = FAULTS[name]
    words = [f"data.path={few if name == 'repeated-data' else data}", *SMALL, *run.settings]
    with run.around(), suppress(DivergedError):
        launch(resolve(None, words, environ={}), RunDir(folder), Start(quiet=True))
    history = read_history(RunDir(folder))
    steps = [{key: each.get(key) for key in STEP_KEYS} for each in history.steps]
    scored = [{"step": each["step"], "tokens": each["tokens"], "all": each["all"]} for each in history.evaluations]
    return {
        "about": run.about,
        "facts": asdict(history.curves.facts),
        "steps": {key: [_short(each[key]) for each in steps] for key in STEP_KEYS},
        "statistics": _short(history.statistics),
        "evaluations": _short(scored),
    }


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def main() -> None:
    """Record the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS], metavar="FAULT")
    names = parser.parse_args().faults or list(FAULTS)
    found = json.loads(gzip.decompress(RECORDED.read_bytes())) if RECORDED.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data, few = prepare(folder / "corpus", with_rulers=False), repeated(folder / "few")
        for name in names:
            found[name] = record(name, data, few, folder / name)
            print(f"{name}: {len(found[name]['steps']['step'])} steps")
    text = json.dumps({name: found[name] for name in FAULTS if name in found}, separators=(",", ":"))
    RECORDED.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{RECORDED.name}: {RECORDED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
