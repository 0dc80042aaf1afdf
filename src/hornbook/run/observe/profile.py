"""A trace of some steps by torch.profiler (`log.profile`), for chrome://tracing or ui.perfetto.dev.

Outside of these steps there is no profiler, so they cost nothing. Each rank writes a file of its own.
"""

from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile

from hornbook.errors import StorageError
from hornbook.files.durable import storage_errors
from hornbook.run.job.job import Job
from hornbook.run.ledger.step_report import Step
from hornbook.run.observe.console import Console


class StepProfile:
    """Observer: a trace begins before the first step of its window, and is written behind the last."""

    def __init__(self, job: Job, consoles: list[Console]) -> None:
        self._run, self._rank, self._log, self._consoles = job.run, job.rank_info.rank, job.recipe.log, consoles
        self._steps = range(0)
        self._done = 0
        self._profiler: Any = None

    def start(self, done: int) -> None:
        """Begin an attempt behind `done` steps, which may be within the window."""
        wanted = self._log.profiled(done)
        self._steps, self._done = range(max(wanted.start, done + 1), wanted.stop), done
        self._begin_before(done + 1)

    def __call__(self, step: Step) -> None:
        self._done = step.step
        if self._profiler is not None and step.step + 1 not in self._steps:
            self._write()
        elif self._profiler is None:
            self._begin_before(step.step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._profiler is not None:  # the run ended within the window
            self._write()

    def _begin_before(self, step: int) -> None:
        if self._steps and step == self._steps.start:
            cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profiler.start()

    def _write(self) -> None:
        """Write the trace; where that fails the run goes on without it."""
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        first = self._steps.start
        path = self._run.profile / f"step-{first:08d}-rank-{self._rank}.json"
        try:
            self._run.check()  # nothing is made anew where the run was moved
            with storage_errors(path):
                path.parent.mkdir(exist_ok=True)
                path.touch()
                profiler.export_chrome_trace(str(path))
        except StorageError as error:
            text = f"no trace was written: {error}"
        else:
            text = f"traced steps {first:,} to {self._done:,}: {path.parent.name}/{path.name}"
        for console in self._consoles:
            console.note(text)
