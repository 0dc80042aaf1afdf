"""How `hornbook quickstart` keeps its time limit: measure the machine, estimate the stages, choose a size that fits.

A probe (`hornbook.run.diagnose.calibrate`) measures three times: to start a process that loads torch, to compile the
kernels, and to train on one token in the precision of the run. The size is chosen twice, before the text is written
and before training, each time for the time that is left.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from hornbook.cli.start.demo import BATCH_TOKENS, EVAL_TOKENS, SCORES_PER_RUN, SEQUENCE, SIZES, VALIDATION, VOCAB, Size
from hornbook.model.config.flops import SCORING_COST

PROBED = (SIZES[0], SIZES[2])
PROBE_SECONDS = 2.0
LEAST_STEPS = 120
"""Minimum number of steps; with fewer, the model learns nothing worth showing."""
LEAST_SHARE = 0.35
"""Minimum share of the time left for training, whatever the estimate of the other stages."""
SLACK = 1.15
"""Factor on every estimate, so that noise and other processes do not shorten the run."""
SHARE_OF_RATE = 0.85  # a run trains at this share of the probed rate: batches, metrics, console
REDONE = 0.1  # share of the steps that are lost with the killed worker and computed again
BYTES_PER_TOKEN = 3.0
# The stages in starts of a process that loads torch, the one thing that slows down with them wherever they run:
TEXT_STARTS, TEXT_STARTS_PER_MB = 1.2, 0.3  # writing, preparing and tokenizing
SAMPLE_STARTS = 0.15  # a sample of 64 tokens
TRAIN_STARTS, EVALUATE_STARTS, EXPORT_STARTS = 2 * 1.4, 2.0, 3.0  # train and resume; baselines; the certificate
TEXT_COMPILES, TRAIN_COMPILES = 0.3, 0.4  # kernels that the probe does not need, in the time that its own took


@dataclass(frozen=True)
class Machine:
    """What the probe measured. Times are in seconds."""

    start: float
    """To start a process that can compute."""
    compiling: float
    """To compile the kernels of a training step; about 0 if they are cached."""
    seconds_per_token: Mapping[int, float]
    """Of training, by the number of parameters."""
    precision: str = ""

    def token(self, size: Size) -> float:
        """Seconds per token at a size: linear in the parameters; proportional to them if only one size was probed."""
        (least, first), *rest = sorted(self.seconds_per_token.items())
        if not rest:
            return first * max(size.parameters / least, 1.0)
        most, last = rest[-1]
        slope = max(last - first, 0.0) / (most - least)
        return first + slope * (size.parameters - least)

    def text(self, size: Size) -> float:
        """Seconds to write, prepare and tokenize the text of a size."""
        starts = TEXT_STARTS + TEXT_STARTS_PER_MB * size.corpus_bytes / 1e6
        return starts * self.start + TEXT_COMPILES * self.compiling

    def training(self, size: Size) -> float:
        """Seconds for all steps, the repeated ones, and the evaluations and samples between them."""
        steps = size.tokens * (1 + REDONE) / SHARE_OF_RATE
        scored = (SCORES_PER_RUN + 1) * 2 * EVAL_TOKENS * SCORING_COST
        return (steps + scored) * self.token(size) + (SCORES_PER_RUN + 1) * SAMPLE_STARTS * self.start

    def beside(self, size: Size) -> float:
        """Seconds for all that comes with and after training: processes, two evaluations, baselines, export."""
        starts = TRAIN_STARTS + EVALUATE_STARTS + EXPORT_STARTS
        scored = 2 * size.corpus_bytes * VALIDATION / BYTES_PER_TOKEN * SCORING_COST
        return starts * self.start + scored * self.token(size) + TRAIN_COMPILES * self.compiling

    def remaining(self, size: Size) -> float:
        """Seconds from the first training step to the end of the demo."""
        return self.training(size) + self.beside(size)


@dataclass(frozen=True)
class Plan:
    """The size to train, and its time limit."""

    size: Size
    train_seconds: float | None
    """Time limit of the training; None for a pinned size, whose results must be the same everywhere."""
    reason: str
    """Why this size, for people."""


class Budget:
    """The time limit of the demo, counted from the start of the process."""

    def __init__(self, seconds: float, machine: Machine, elapsed: float) -> None:
        self.seconds, self.machine = seconds, machine
        self._zero = time.monotonic() - elapsed

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.seconds - (time.monotonic() - self._zero)

    @classmethod
    def probed(cls, seconds: float, begun: float) -> Self:
        """Measure this machine; `begun` is the monotonic time at which the demo started."""
        machine = probe()
        return cls(seconds, machine, time.monotonic() - begun)

    def first_size(self) -> tuple[Size, str]:
        """(the size whose text is prepared, a line where not even the smallest fits, which raises the limit)."""
        needed = least_seconds(self.machine) + self.seconds - self.left
        if needed <= self.seconds:
            return choose_size(self.left, self.machine, with_text=True), ""
        few = f"{self.seconds:g} s are too few for this machine as it is now"
        note = f"{few}: the smallest demo takes about {needed:.0f} s."
        self.seconds = needed
        return choose_size(self.left, self.machine, with_text=True), note

    def plan(self, largest: Size) -> Plan:
        """The size to train on the text prepared for the size `largest`."""
        self.machine = replace(self.machine, start=min(self.machine.start, process_start()))
        sizes = [size for size in SIZES if size.parameters <= largest.parameters]
        left = self.left
        size = replace(choose_size(left, self.machine, sizes), corpus_bytes=largest.corpus_bytes)
        train_seconds = max(left - SLACK * self.machine.beside(size), LEAST_SHARE * left)
        whole = size.steps == next(each.steps for each in SIZES if each.name == size.name)
        speed = f"{self.machine.precision}, {1 / self.machine.token(size):,.0f} tokens/s"
        found = "the largest" if whole else f"cut to {size.steps} steps"
        return Plan(size, train_seconds, f"{found} for the {left:.0f} s left at {speed}")


def least_seconds(machine: Machine) -> float:
    """Seconds of the smallest demo, from writing the text to the end."""
    least = replace(SIZES[0], steps=LEAST_STEPS)
    return machine.text(least) + SLACK * machine.remaining(least)


def choose_size(left: float, machine: Machine, sizes: Sequence[Size] = SIZES, *, with_text: bool = False) -> Size:
    """The largest size that fits into `left` seconds. If none fits: the smallest, with fewer steps."""

    def needed(size: Size) -> float:
        return SLACK * machine.remaining(size) + (machine.text(size) if with_text else 0.0)

    for size in reversed(sizes):
        if needed(size) <= left:
            return size
    smallest = sizes[0]
    steps = range(LEAST_STEPS, smallest.steps)
    return next(
        (size for number in reversed(steps) if needed(size := replace(smallest, steps=number)) <= left),
        replace(smallest, steps=LEAST_STEPS),
    )


def process_start() -> float:
    """Seconds to start a process that imports what training needs. The first one also reads it from disk."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import hornbook.run.launch.launch"], check=True)
    return time.monotonic() - begun


def probe() -> Machine:
    """Measure this machine in a process of its own, which takes some seconds."""
    shapes = [f"{size.layers}x{size.width}x{size.heads}" for size in PROBED]
    command = [sys.executable, "-m", "hornbook.run.diagnose.calibrate", *map(str, (VOCAB, SEQUENCE, BATCH_TOKENS))]
    begun = time.monotonic()
    done = subprocess.run([*command, str(PROBE_SECONDS), *shapes], check=True, stdout=subprocess.PIPE, text=True)
    return machine_of(json.loads(done.stdout), time.monotonic() - begun)


def machine_of(found: Mapping[str, Any], seconds: float) -> Machine:
    """Build the measurements from the output of the probe and the seconds that its process took."""
    rates = {size.parameters: rate for size, rate in zip(PROBED, found["seconds_per_token"], strict=False)}
    return Machine(max(seconds - found["computing"], 0.1), found["compiling"], rates, found["precision"])
