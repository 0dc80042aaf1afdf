"""The parts of `hornbook quickstart`: sizes, the measured step that chooses one, recipe, the killed worker.

Each stage runs the command that a person would type as a child process, so that the demo cannot show anything that
the product does not do.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w

from hornbook.cli.child import command
from hornbook.errors import HornbookError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir

KILL_AT = 0.5  # share of the run after which the worker is killed
SAVES_PER_RUN = 5
SCORES_PER_RUN = 5
EVAL_TOKENS = 8192
VALIDATION = 0.05
POLL_SECONDS = 0.03
PROBE_SECONDS = 2.0
STARTS, STARTS_OF_TRAINING = 14, 9
"""Seconds of everything but the steps, of the whole demo and from training on, in starts of a process."""
WORK = 2.0
"""Seconds of training and evaluations over those of its steps as measured: repeated steps, data, slower moments."""
LEAST_STEPS, LEAST_SHARE = 120, 0.35
"""Steps that still learn something worth showing; share of the time left that training has in any case."""


@dataclass(frozen=True)
class Size:
    """One size of the demo. It alone determines every number of the run."""

    name: str
    layers: int
    width: int
    heads: int
    steps: int
    corpus_bytes: int
    lr: float

    @property
    def tokens(self) -> int:
        """Training length in tokens."""
        return self.steps * BATCH_TOKENS

    @property
    def parameters(self) -> int:
        """Parameters of the matrices: 12 x width^2 in each layer (attention 4, MLP 8), and the embedding."""
        return 12 * self.layers * self.width**2 + VOCAB * self.width

    @property
    def save_every(self) -> int:
        """Steps between saves."""
        return max(self.steps // SAVES_PER_RUN, 2)


VOCAB = 4096
SEQUENCE = 256
BATCH_TOKENS = 1024  # with four times as many the same training length gives 2.18 bits per byte at xs, not 1.97
LOG_LINES = 8
SIZES = [
    Size("xs", 2, 128, 2, 320, 3_000_000, 3e-3),
    Size("s", 4, 192, 3, 640, 4_000_000, 3e-3),
    Size("m", 4, 256, 4, 1000, 5_000_000, 2.5e-3),
    Size("l", 6, 320, 5, 1600, 8_000_000, 2e-3),
    Size("xl", 6, 384, 6, 3200, 12_000_000, 2e-3),
]


def recipe_text(size: Size, raw: Path) -> str:
    """The demo's recipe as TOML; `raw` is the folder with the two sources."""
    rows = {"batch_tokens": BATCH_TOKENS, "sequence": SEQUENCE, "micro_batch": BATCH_TOKENS // SEQUENCE}
    recipe = {
        "extends": "tiny",
        "name": f"quickstart-{size.name}",
        "text": {
            "validation": VALIDATION,
            "sources": {name: {"paths": [str(raw / f"{name}.jsonl")]} for name in ("code", "docstrings")},
            "tokenizer": {"vocab": VOCAB},
        },
        "model": {"layers": size.layers, "width": size.width, "heads": size.heads},
        "optim": {"lr": size.lr},
        "train": {"tokens": size.tokens, **rows},
        "checkpoint": {"every": size.save_every},
        "log": {"every": size.steps // LOG_LINES},
        "eval": {"every": size.steps // SCORES_PER_RUN, "tokens": EVAL_TOKENS, "prompt": "def"},
    }
    return f"# Written by hornbook quickstart.\n{tomli_w.dumps(recipe)}"


@dataclass(frozen=True)
class Machine:
    """Times of this machine in seconds, by a measured step of the smallest size."""

    start: float
    """To start a process that can compute, the unit of everything but training."""
    token: float
    """To train the smallest size on one token."""
    precision: str = ""

    def token_of(self, size: Size) -> float:
        """Seconds per token at a size: half of those of the smallest size grow with the parameters."""
        return self.token * (1 + size.parameters / SIZES[0].parameters) / 2

    def seconds(self, size: Size) -> float:
        """Seconds of a whole demo."""
        return STARTS * self.start + WORK * size.tokens * self.token_of(size)

    def choose(self, seconds: float) -> Size:
        """The largest size whose demo ends within `seconds`; else the smallest, with fewer steps."""
        for size in reversed(SIZES):
            if self.seconds(size) <= seconds:
                return size
        smallest = SIZES[0]
        steps = int((seconds - STARTS * self.start) / (WORK * BATCH_TOKENS * self.token))
        return replace(smallest, steps=min(max(steps, LEAST_STEPS), smallest.steps))

    def train_seconds(self, left: float) -> float:
        """Time limit of the training, of `left` seconds of the demo."""
        return max(left - STARTS_OF_TRAINING * self.start, LEAST_SHARE * left)


def measure_machine() -> Machine:
    """Train the smallest size for some seconds on random tokens, in a process of its own."""
    shape = f"{SIZES[0].layers}x{SIZES[0].width}x{SIZES[0].heads}"
    words = [*map(str, (VOCAB, SEQUENCE, BATCH_TOKENS, PROBE_SECONDS)), shape]
    begun = time.monotonic()
    calibrate = [sys.executable, "-m", "hornbook.run.diagnose.calibrate", *words]
    found = json.loads(subprocess.run(calibrate, check=True, stdout=subprocess.PIPE, text=True).stdout)
    start = max(time.monotonic() - begun - found["computing"], 0.1)
    return Machine(start, found["seconds_per_token"], found["precision"])


@dataclass(frozen=True)
class Kill:
    """The loss of the killed worker and of the resumed one at the same step."""

    step: int
    before: float
    after: float


def losses(run: RunDir, attempt: int | None = None) -> dict[int, float]:
    """Loss by step, of one attempt or of the whole run (of repeated steps, the last one)."""
    found: dict[int, float] = {}
    if run.metrics.exists():
        for record in read_records(run.metrics):
            if attempt is None or record["attempt"] == attempt:
                found[record["step"]] = record["loss"]
    return found


def train_and_kill(words: Sequence[str | Path], run: RunDir, share: float = KILL_AT) -> int | None:
    """Start training and kill the worker with SIGKILL; returns the last step it logged, None if it was not killed.

    The worker is killed once `share` of the run is done and some steps follow the newest save. A run that ends before
    that is not an error.
    """
    worker = subprocess.Popen(command(*words))
    killed = False
    try:
        while worker.poll() is None:
            if is_ripe(run, share):
                os.kill(worker.pid, signal.SIGKILL)
                killed = True
                break
            time.sleep(POLL_SECONDS)
    except BaseException:
        worker.kill()
        raise
    finally:
        code = worker.wait()
    if code not in (-signal.SIGKILL, 0):
        raise HornbookError(f"training ended with exit code {code} before its worker could be killed")
    return max(losses(run)) if killed and code else None


def is_ripe(run: RunDir, share: float) -> bool:
    """Whether `share` of the run is done, and at least half of the steps between two saves follow the newest one."""
    state, saves = run.read_state(), [int(folder.name[5:]) for folder in run.checkpoints.glob("step-*")]
    total = state.get("total_tokens") if state is not None else None
    if not saves or not total:
        return False
    last, first = max(losses(run), default=0), min(saves)
    return last * BATCH_TOKENS >= share * total and last - max(saves) >= max(first // 2, 1)


def compare_attempts(run: RunDir) -> Kill | None:
    """Loss at the last step that both the killed worker and its successor computed; None if there is none."""
    first, second = losses(run, attempt=1), losses(run, attempt=2)
    common = max(first.keys() & second.keys(), default=None)
    return None if common is None else Kill(common, first[common], second[common])
