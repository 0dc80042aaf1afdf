"""Poison: what batches of random tokens cost a small run, under several rules."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hornbook.run.loop.training_loop as loop
from benchmarks.reliability.guard.rules import MeanDeviations
from benchmarks.reliability.guard.runs import ROWS, train
from hornbook.data.batch import Batch
from hornbook.data.loader.loader import Loader
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.optim.config.clipping_config import StepLimits
from hornbook.run.guard.guard import Guard, Seen
from hornbook.run.job.job import Job
from hornbook.settings.training import GuardConfig

POISONED = 12
"""Batches in a row."""
STEPS, FIRST, LAST = 400, 150, 60
"""Of a run; poison begins at step `FIRST` or later, when each rule has its history, and `LAST` before the end."""
EARLIER = 2
"""Batches by which the second run without the poison leaves others out."""


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

    def limits(self, step: int, rows: int | None = None) -> StepLimits | None:  # noqa: ARG002
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


def poison(data: Path, folder: Path, places: int, done: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Places `done`, and as many more of `places` as begin within so many seconds."""
    draw, until = random.Random(2), time.monotonic() + seconds
    drawn = [draw.randrange(FIRST, STEPS - LAST) for _ in range(places)]
    found = [each for each in done if each["at"] in drawn and "left_out" in each]
    for at in drawn[len(found) :]:
        if time.monotonic() > until:
            break
        found.append(_place(data, folder / f"{at}-{len(found)}", at))
        print(found[-1], flush=True)
    return found


def _place(data: Path, folder: Path, at: int) -> dict[str, Any]:
    """What the run that never had the poison ends with, and how much more the others do.

    It leaves out as many batches as the guard, so that both end with the same ones: which batches a run ends with makes
    a difference that is the same at all places, and larger than that of a window.
    """
    samples = range(at * ROWS, (at + POISONED) * ROWS)
    with poisoned(samples):
        guarded = train(data, folder / "guard", STEPS, "checkpoint.every=50")
    left_out = max(_left_out(folder / "guard"), POISONED)
    with without(range(at * ROWS, (at + left_out) * ROWS)):
        clean = train(data, folder / "clean", STEPS)
    with without(range((at - EARLIER) * ROWS, (at - EARLIER + left_out) * ROWS)):
        excess = {"never, other window": train(data, folder / "other", STEPS) - clean}
    excess["hornbook"] = guarded - clean
    with poisoned(samples):
        excess["clipping alone"] = train(data, folder / "clip", STEPS, "guard.mode=off") - clean
        with guarded_by(lambda _: MeanDeviationGuard(STEPS)):
            excess["mean and deviation"] = train(data, folder / "mean", STEPS) - clean
    kinds = [each["kind"] for each in read_records(RunDir(folder / "guard").events)]
    counts = {"skips": kinds.count("skip"), "rollbacks": kinds.count("rollback")}
    return {"at": at, "clean": clean, "left_out": left_out, **counts, "excess": excess}


def _left_out(folder: Path) -> int:
    """Batches that the guard of a run left out."""
    windows = [each["windows"] for each in read_records(RunDir(folder).events) if each["kind"] == "rollback"]
    return sum(end - first for each in windows for first, end in each) // ROWS


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What places have in common.

    Noise is how much two runs differ that never had the poison, but leave out other batches, and as many. Within noise:
    no more than two of its standard deviations above.
    """
    names = found[0]["excess"]
    columns = {name: [each["excess"][name] for each in found] for name in names}
    null = columns["never, other window"]
    noise = statistics.pstdev(null, mu=0.0)
    rules = {
        name: {"mean": statistics.fmean(each), "worst": max(each), "within_noise": sum(x <= 2 * noise for x in each)}
        for name, each in columns.items()
    }
    counts = {name: sum(each[name] for each in found) for name in ("skips", "rollbacks")}
    facts = {"places": len(found), "batches": POISONED, "steps": STEPS, "noise": noise}
    return {**facts, **counts, "excess": rules, "found": found}
