"""A trace of some steps by torch.profiler (`log.profile`), for chrome://tracing or ui.perfetto.dev.

Outside of these steps there is no profiler, so they cost nothing. Each rank writes its own file.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile

from hornbook.errors import StorageError
from hornbook.files.durable import storage_errors
from hornbook.run.job import Job
from hornbook.run.step_report import Step


class StepProfile:
    """Observer that begins a trace behind the step before the first one of the window, and writes it behind the last."""

    def __init__(self, job: Job, done: int, note: Callable[[str], None]) -> None:
        """`done`: steps before this attempt."""
        self._run, self._rank, self._note = job.run, job.rank_info.rank, note
        self._steps = job.recipe.log.profiled(done)
        self._first = done + 1
        self._profiler: Any = None

    def start(self, done: int) -> None:
        """Begin the trace where it starts with the first step of the attempt; a resume may be within the window."""
        self._steps = range(max(self._steps.start, done + 1), self._steps.stop)
        self._begin_before(done + 1)

    def __call__(self, step: Step) -> None:
        if self._profiler is not None and (step.step + 1 not in self._steps or step.final):
            self._write()
        elif self._profiler is None:
            self._begin_before(step.step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._profiler is not None:  # the run stopped within the window
            with contextlib.suppress(StorageError):
                self._write()

    def _begin_before(self, step: int) -> None:
        if self._steps and step == self._steps.start:
            cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profiler.start()

    def _write(self) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        name = f"step-{self._steps.start:08d}-rank-{self._rank}.json"
        with storage_errors(self._run.profile):
            self._run.check()  # nothing is made anew where the run was moved
            self._run.profile.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(self._run.profile / name))
        self._note(f"traced {len(self._steps)} steps from step {self._steps.start:,} on: profile/{name}")
