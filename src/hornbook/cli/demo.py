"""The parts of `hornbook quickstart`: sizes, calibration, and the worker that is killed and resumed.

Everything runs through the same verbs a person would type, as child processes, so that the demo can show
nothing that the product does not do.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hornbook.errors import Exit, HornbookError
from hornbook.journal import read_records
from hornbook.rundir import RunDir

SECONDS_BESIDE_TRAINING = 50  # text, tokenizer, start of processes, evaluation, export on two cores
USUAL_WORK_PER_SECOND = 4e10  # of the machine these seconds were taken on; a slower one needs longer for them too
SHARE_OF_RATE = 0.9  # a run trains at this share of the calibrated rate: batches, metrics, console
KILL_AT = 0.8  # share of the steps after which the worker is killed
SAVES_PER_RUN = 5
POLL_SECONDS = 0.03
SCORES_PER_RUN = 10
CALIBRATION_SECONDS = 3.0


@dataclass(frozen=True)
class Size:
    """One size of the demo; the size alone decides every number of the run."""

    name: str
    layers: int
    width: int
    heads: int
    steps: int
    corpus_bytes: int
    lr: float

    @property
    def tokens(self) -> int:
        """Tokens the run trains on."""
        return self.steps * BATCH_TOKENS

    @property
    def work(self) -> float:
        """Relative cost of the run: matrix parameters x tokens (4 attention, 8 MLP widths squared, 4k vocabulary)."""
        return (12 * self.layers * self.width**2 + VOCAB * self.width) * self.tokens


VOCAB = 4096
SEQUENCE = 256
BATCH_TOKENS = 4096
SIZES = [
    Size("xs", 2, 128, 2, 80, 3_000_000, 3e-3),
    Size("s", 4, 192, 3, 160, 4_000_000, 3e-3),
    Size("m", 4, 256, 4, 250, 5_000_000, 2.5e-3),
    Size("l", 6, 320, 5, 400, 8_000_000, 2e-3),
    Size("xl", 6, 384, 6, 800, 12_000_000, 2e-3),
]


def recipe_text(size: Size, raw: Path) -> str:
    """The demo's recipe as TOML; `raw` is the folder with the two sources."""
    return f"""# Written by hornbook quickstart.
extends = "tiny"
name = "quickstart-{size.name}"

[text.sources.code]
paths = [{json.dumps(str(raw / "code.jsonl"))}]

[text.sources.docstrings]
paths = [{json.dumps(str(raw / "docstrings.jsonl"))}]

[text.tokenizer]
vocab = {VOCAB}

[text]
validation = 0.05

[model]
layers = {size.layers}
width = {size.width}
heads = {size.heads}

[optim]
lr = {size.lr}

[train]
tokens = {size.tokens}
batch_tokens = {BATCH_TOKENS}
sequence = {SEQUENCE}
micro_batch = 16

[checkpoint]
every = {size.steps // SAVES_PER_RUN}

[eval]
every = {size.steps // SCORES_PER_RUN}
tokens = 16384
prompt = "def"
"""


def seconds_for(size: Size, work_per_second: float) -> float:
    """How long the whole demo takes at this size on a machine of this calibrated rate."""
    beside = SECONDS_BESIDE_TRAINING * max(1.0, USUAL_WORK_PER_SECOND / work_per_second)
    return beside + size.work / (SHARE_OF_RATE * work_per_second)


def choose_size(seconds: float, work_per_second: float) -> Size:
    """The largest size that ends within `seconds`; the smallest where none does."""
    fitting = [size for size in SIZES if seconds_for(size, work_per_second) <= seconds]
    return fitting[-1] if fitting else SIZES[0]


def calibrate() -> float:
    """Work per second of this machine: training steps of the middle size on random tokens, for three seconds."""
    probe = SIZES[2]
    command = [sys.executable, "-m", "hornbook.run.calibrate", *map(str, (probe.layers, probe.width, probe.heads))]
    command += [str(VOCAB), str(SEQUENCE), str(BATCH_TOKENS), str(CALIBRATION_SECONDS)]
    tokens_per_second = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return probe.work / probe.tokens * tokens_per_second


def hornbook(*words: str | Path, capture: bool = False) -> str:
    """Run one verb in a child process, its messages on our stderr; return what it printed when `capture`."""
    command = [sys.executable, "-m", "hornbook.cli.main", *map(str, words)]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE if capture else None)
    if done.returncode:
        failed = HornbookError(f"`hornbook {' '.join(map(str, words))}` ended with exit code {done.returncode}")
        failed.exit_code = Exit(done.returncode) if done.returncode in set(Exit) else Exit.DEFECT
        raise failed
    return done.stdout if capture else ""


@dataclass(frozen=True)
class Kill:
    """What the killed worker and its successor computed at the same step."""

    step: int
    before: float
    after: float


def losses(run: RunDir, attempt: int | None = None) -> dict[int, float]:
    """Loss by step, of one attempt or (the later attempt wins) of the whole run."""
    found: dict[int, float] = {}
    if run.metrics.exists():
        for record, _ in read_records(run.metrics):
            if attempt is None or record["attempt"] == attempt:
                found[record["step"]] = record["loss"]
    return found


def train_and_kill(words: Sequence[str | Path], run: RunDir, kill_at: int) -> int:
    """Start training, kill the worker with SIGKILL once step `kill_at` is on disk; return the last step it logged.

    A machine so fast that the run ends before the signal arrives is not an error.
    """
    worker = subprocess.Popen([sys.executable, "-m", "hornbook.cli.main", *map(str, words)])
    try:
        while worker.poll() is None:
            if max(losses(run), default=0) >= kill_at:
                os.kill(worker.pid, signal.SIGKILL)
                break
            time.sleep(POLL_SECONDS)
    except BaseException:
        worker.terminate()
        raise
    finally:
        code = worker.wait()
    if code not in (-signal.SIGKILL, 0):
        raise HornbookError(f"training ended with exit code {code} before its worker could be killed")
    return max(losses(run))


def compare_attempts(run: RunDir) -> Kill | None:
    """Loss at the last step that both the killed worker and its successor computed; None if there is none."""
    first, second = losses(run, attempt=1), losses(run, attempt=2)
    common = max(first.keys() & second.keys(), default=None)
    return None if common is None else Kill(common, first[common], second[common])
