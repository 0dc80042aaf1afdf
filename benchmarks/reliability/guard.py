"""The guard against what others do: a published spike, healthy noise, poisoned data, and what it costs.

    python -m benchmarks.reliability.guard

* BLOOM-176B's published iterations 31214 to 31222, behind noise around the level that was published before them: when
  does which rule fire? A replay, not a counterfactual: nobody can say what the run would have done.
* Healthy noise: losses and gradient norms of a real run with small batches, in blocks drawn again up to a million
  steps. Whatever fires is a false alarm.
* Poison: batches of random tokens at places of a small run. The loss on held-out text at its end, against the run that
  never had these batches, with the guard, with clipping alone, and with a skip rule of mean and standard deviation.
* Time: what a step takes longer.

The rules of others are written from their descriptions: OLMo-core's SkipStepAdamW (128 steps, six standard deviations,
outliers stay in the window), llm-foundry's loss spike callback (twice the running mean, four steps in a row),
Megatron-LM's check (ten times the largest of the first 100).
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

import hornbook.run.train as loop
from benchmarks import report
from benchmarks.reliability.kill import finish, hornbook
from hornbook.data.batch import Batch
from hornbook.data.loader.loader import Loader
from hornbook.errors import Exit
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, fullest
from hornbook.optim.config.clipping import StepLimits
from hornbook.run.config import GuardConfig
from hornbook.run.guard.guard import Guard, Seen
from hornbook.run.job import Job, Start
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve

FIRST = 31_214
BLOOM = (
    (2.199, 0.242),
    (2.220, 0.947),
    (2.595, 2.39),
    (2.242, 15.9),
    (2.345, 145.0),
    (5.098, 960.0),
    (3.492, 353.0),
    (3.213, 379.0),
    (2.805, 650.0),
)
"""(loss, gradient norm) of iterations 31214 on: BigScience, tr11-176B-ml chronicles, 2022-04-12."""
LEVEL_LOSS, LEVEL_NORM, SPREAD_LOSS, SPREAD_NORM = 2.2, 0.17, 0.03, 0.15
"""Before them; spreads of the loss, and of the logarithm of the norm."""
SEQUENCE, ROWS, VOCAB = 64, 4, 512
SMALL = (
    "model.layers=1",
    "model.width=64",
    "model.heads=2",
    f"train.sequence={SEQUENCE}",
    f"train.batch_tokens={SEQUENCE * ROWS}",
    f"train.micro_batch={ROWS}",
    "train.precision=fp32",
    "train.device=cpu",
    "train.threads=1",
    "optim.lr=3e-3",
    "optim.schedule.warmup=20 steps",
    "checkpoint.background=false",
    "eval.every=0",
    "eval.prompt=",
    "log.every=1000",
)
PARTS = ("bloom", "cost", "healthy", "poison")
POISONED = 12
"""Batches in a row."""


class Rule(Protocol):
    """A rule of when a step is skipped."""

    def fires(self, loss: float, norm: float) -> bool:
        """Whether it does at this step; the step is taken in."""
        ...


class Ours:
    """The guard."""

    def __init__(self, steps: int = 100_000) -> None:
        self.guard, self._step = Guard(GuardConfig(), steps=steps, warmup=0), 0
        self.found: list[tuple[int, str]] = []

    def fires(self, loss: float, norm: float) -> bool:
        self._step += 1
        limits = self.guard.limits(self._step)
        refused = limits is not None and (norm > limits.norm or loss > limits.loss)
        seen = Seen(self._step, loss, norm, not refused, int(refused), clock=self._step - 1, rows=1)
        self.found += [(self._step, each.rule) for each in self.guard.judge(seen)]
        if self.guard.pending is not None:
            self.found.append((self._step, "rollback"))
            self.guard.let_go()
        return refused


class MeanDeviations:
    """Six standard deviations over the mean of the last 128 steps, whatever they were."""

    def __init__(self, window: int = 128, sigmas: float = 6.0) -> None:
        self._sigmas = sigmas
        self._kept: list[deque[float]] = [deque(maxlen=window), deque(maxlen=window)]

    def limit(self, number: int) -> float:
        """Of the loss (0) or the norm (1) of the next step; infinite before the window is full."""
        kept = self._kept[number]
        if len(kept) < (kept.maxlen or 0):
            return math.inf
        return statistics.fmean(kept) + self._sigmas * statistics.stdev(kept)

    def fires(self, loss: float, norm: float) -> bool:
        beyond = loss > self.limit(0) or norm > self.limit(1)
        for kept, value in zip(self._kept, (loss, norm), strict=True):
            kept.append(value)
        return beyond


class TwiceTheMean:
    """A loss of twice the mean of the last 500, four times in a row."""

    def __init__(self) -> None:
        self._losses, self._high = deque[float](maxlen=500), 0

    def fires(self, loss: float, norm: float) -> bool:  # noqa: ARG002
        self._high = self._high + 1 if len(self._losses) > 100 and loss > 2 * statistics.fmean(self._losses) else 0
        self._losses.append(loss)
        return self._high >= 4


class TenTimesTheFirst:
    """Ten times the largest gradient norm of the first 100 steps."""

    def __init__(self) -> None:
        self._largest, self._steps = 0.0, 0

    def fires(self, loss: float, norm: float) -> bool:  # noqa: ARG002
        self._steps += 1
        if self._steps <= 100:
            self._largest = max(self._largest, norm)
            return False
        return norm > 10 * self._largest


def bloom() -> dict[str, Any]:
    """Iterations at which each rule fires."""
    draw = random.Random(0)
    before = [
        (draw.gauss(LEVEL_LOSS, SPREAD_LOSS), LEVEL_NORM * math.exp(draw.gauss(0, SPREAD_NORM))) for _ in range(1_000)
    ]
    rules: dict[str, Rule] = {
        "hornbook": (ours := Ours()),
        "OLMo-core": MeanDeviations(),
        "llm-foundry": TwiceTheMean(),
        "Megatron-LM": TenTimesTheFirst(),
    }
    skips = {
        name: [number - len(before) + FIRST for number, row in enumerate([*before, *BLOOM]) if rule.fires(*row)]
        for name, rule in rules.items()
    }
    events: dict[str, int] = {}
    for step, kind in ours.found:
        events.setdefault(kind, step - 1 - len(before) + FIRST)
    return {"skips": skips, "first": events}


def healthy(data: Path, folder: Path, steps: int, recorded: int) -> dict[str, Any]:
    """False alarms within `steps` steps of noise of a real run of `recorded` steps."""
    train(data, folder / "noise", recorded, "guard.mode=off", "optim.schedule.kind=constant")
    curve = [
        (each["loss"], math.log(each["gradient_norm"])) for each in read_records(RunDir(folder / "noise").metrics)
    ][recorded // 4 :]
    noise = residuals(curve)
    level = statistics.median(loss for loss, _ in curve), statistics.median(norm for _, norm in curve)
    rules: dict[str, Rule] = {"hornbook": (ours := Ours(steps)), "OLMo-core": MeanDeviations()}
    skips = dict.fromkeys(rules, 0)
    for loss, norm in blocks(noise, steps):
        row = level[0] + loss, math.exp(level[1] + norm)
        for name, rule in rules.items():
            skips[name] += rule.fires(*row)
    kinds = [kind for _, kind in ours.found]
    return {
        "steps": steps,
        "recorded": len(noise),
        "skips": skips,
        "clips": kinds.count("D1a"),
        "spikes": kinds.count("D1c"),
        "rollbacks": kinds.count("rollback"),
    }


def residuals(curve: Sequence[tuple[float, float]], half: int = 64) -> list[tuple[float, float]]:
    """Distances of loss and log norm from their medians over 129 steps around."""
    found = []
    for at in range(half, len(curve) - half):
        near = curve[at - half : at + half + 1]
        found.append(tuple(curve[at][k] - statistics.median(row[k] for row in near) for k in (0, 1)))
    return found


def blocks(noise: Sequence[tuple[float, float]], steps: int, size: int = 100) -> Iterator[tuple[float, float]]:
    """Noise of so many steps: blocks of a recorded series, drawn again (a block bootstrap keeps what is correlated)."""
    draw, done = random.Random(1), 0
    while done < steps:
        first = draw.randrange(len(noise) - size)
        yield from noise[first : first + min(size, steps - done)]
        done += size


def prepare(folder: Path) -> Path:
    """Data of this repository's own sources and pages: text of several kinds, whose losses scatter as real ones do."""
    (folder / "text").mkdir()
    root = Path(__file__).parents[2]
    for number, path in enumerate(sorted([*root.glob("src/hornbook/**/*.py"), *root.glob("docs/*.md")])):
        (folder / "text" / f"{number:04}.txt").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    finish(hornbook("prepare", folder / "text", "--out", folder / "data", "--text.validation", "0.08"))
    finish(hornbook("tokenize", folder / "data", "--vocab", str(VOCAB)))
    return folder / "data"


def train(data: Path, folder: Path, steps: int, *words: str) -> float:
    """Train a small run in this process; its loss on held-out text at the end."""
    settings = (f"data.path={data}", *SMALL, f"train.tokens={steps * SEQUENCE * ROWS}", *words)
    ended = launch(resolve(None, settings, environ={}), RunDir(folder), Start(quiet=True))
    assert ended == Exit.DONE, ended
    last = max(evaluations(RunDir(folder)), key=lambda each: each["step"])
    return fullest(last)["all"]["loss"]


# ---- poison


@contextmanager
def poisoned(samples: range) -> Iterator[None]:
    """Batches that hold one of these samples are random tokens."""
    take = Loader.take

    def taking(self: Loader, *arguments: Any, **more: Any) -> Any:
        batch = take(self, *arguments, **more)
        if batch.first_sample in samples:
            return replace(batch, batches=[_random(each) for each in batch.batches])
        return batch

    Loader.take = taking
    try:
        yield
    finally:
        Loader.take = take


def _random(batch: Batch) -> Batch:
    drawn = torch.Generator().manual_seed(int(batch.samples[0]))
    few = torch.randint(0, 16, (2, *batch.tokens.shape), generator=drawn)  # tokens that repeat: gradients add up
    return replace(batch, tokens=few[0], targets=few[1])


@contextmanager
def without(samples: range) -> Iterator[None]:
    """Runs begin without these samples."""
    original = loop.initialize_or_restore

    def begin(job: Job, state: Any, *rest: Any) -> None:
        original(job, state, *rest)
        state.loader.skip([(samples.start, samples.stop)])

    loop.initialize_or_restore = begin
    try:
        yield
    finally:
        loop.initialize_or_restore = original


class MeanDeviationGuard(Guard):
    """The skip rule of mean and standard deviation in the place of the guard."""

    def __init__(self, steps: int) -> None:
        super().__init__(GuardConfig(max_skips=10**6), steps=steps, warmup=0)
        self._rule = MeanDeviations()

    def limits(self, step: int) -> StepLimits | None:  # noqa: ARG002
        return StepLimits(norm=self._rule.limit(1), loss=self._rule.limit(0))

    def judge(self, seen: Seen) -> Iterator[Any]:
        self._rule.fires(seen.loss, seen.norm)
        yield from ()


@contextmanager
def guarded_by(make: Callable[[Job], Guard | None]) -> Iterator[None]:
    """Runs have another guard."""
    original, loop.open_guard = loop.open_guard, make
    try:
        yield
    finally:
        loop.open_guard = original


def poison(data: Path, folder: Path, places: int, steps: int) -> dict[str, Any]:
    """Final losses less that of the run that never had the poisoned batches, for each place."""
    draw, excess, counts = random.Random(2), dict[str, list[float]](), {"skips": 0, "rollbacks": 0}
    for place in range(places):
        step = draw.randrange(100, steps - 100)
        samples = range(step * ROWS, (step + POISONED) * ROWS)
        with without(samples):
            clean = train(data, folder / f"{place}-clean", steps)
        with poisoned(samples):
            found = {"hornbook": train(data, folder / f"{place}-guard", steps, "checkpoint.every=50")}
            found["clipping alone"] = train(data, folder / f"{place}-clip", steps, "guard.mode=off")
            with guarded_by(lambda _: MeanDeviationGuard(steps)):
                found["mean and deviation"] = train(data, folder / f"{place}-mean", steps)
        kinds = [each["kind"] for each in read_records(RunDir(folder / f"{place}-guard").events)]
        counts["skips"] += kinds.count("skip")
        counts["rollbacks"] += kinds.count("rollback")
        for name, loss in found.items():
            excess.setdefault(name, []).append(loss - clean)
        print(place, step, {name: round(each[-1], 4) for name, each in excess.items()}, flush=True)
    spread = noise_of_loss(data, folder, steps)
    summary = {
        name: {"mean": statistics.fmean(each), "worst": max(each), "within_noise": sum(x <= 2 * spread for x in each)}
        for name, each in excess.items()
    }
    return {"places": places, "batches": POISONED, "steps": steps, "noise": spread, **counts, "excess": summary}


def noise_of_loss(data: Path, folder: Path, steps: int, runs: int = 6) -> float:
    """Standard deviation of the final loss over runs that differ in which few samples they do not have."""
    losses = []
    for number in range(runs):
        first = (20 + 15 * number) * ROWS
        with without(range(first, first + POISONED * ROWS)):
            losses.append(train(data, folder / f"noise-{number}", steps))
    return statistics.stdev(losses)


# ---- cost


def cost(data: Path, folder: Path, steps: int = 300, rounds: int = 4) -> dict[str, Any]:
    """Microseconds of the guard on the host, and what steps of a small run take with it and without, interleaved."""
    ours, draw = Ours(), random.Random(3)
    rows = [(draw.gauss(2.2, 0.03), math.exp(draw.gauss(-1.8, 0.15))) for _ in range(4_000)]
    for row in rows[:2_000]:
        ours.fires(*row)
    started = time.perf_counter()
    for row in rows[2_000:]:
        ours.fires(*row)
    host = (time.perf_counter() - started) / 2_000
    seconds: dict[str, list[float]] = {"off": [], "safe": []}
    for number in range(rounds):
        for mode in seconds:
            train(data, run := folder / f"cost-{mode}-{number}", steps, f"guard.mode={mode}")
            seconds[mode] += [each["seconds"] for each in current_branch(read_records(RunDir(run).metrics))][100:]
    medians = {mode: statistics.median(found) for mode, found in seconds.items()}
    return {
        "host_microseconds": host * 1e6,
        "step_milliseconds": {mode: 1e3 * each for mode, each in medians.items()},
        "device_microseconds": 1e6 * (medians["safe"] - medians["off"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The guard of a run against other rules.")
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=1_000_000)
    parser.add_argument("--recorded", type=int, default=4_000)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepare(folder)
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "bloom": bloom,
            "cost": lambda: cost(data, folder),
            "healthy": lambda: healthy(data, folder, options.healthy, options.recorded),
            "poison": lambda: poison(data, folder, options.places, options.steps),
        }
        for part in options.parts:
            found = measures[part]()
            print(part, found, flush=True)
            print(report.write("guard", {**report.known("guard"), part: found}))


if __name__ == "__main__":
    main()
