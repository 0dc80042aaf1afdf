"""One attempt of a run, as one rank sees it: the inputs it reads, the files it writes, and what steers it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from hornbook.files.durable import write_atomic
from hornbook.files.journal import Appender
from hornbook.files.run_directory import RunDir, StateRecord
from hornbook.files.run_lock import process_identity
from hornbook.parallel.world import RankInfo
from hornbook.run.control import Control
from hornbook.run.inputs import Inputs, resumed_length
from hornbook.run.launch.heartbeat import Heartbeat
from hornbook.run.ledger import Ledger, SilentAppender
from hornbook.run.start.init_from import InitFrom
from hornbook.run.training_length import TrainingLength
from hornbook.settings.recipe import Recipe
from hornbook.settings.resume_rules import Change


@dataclass(frozen=True)
class Start:
    """How an attempt starts."""

    mode: Literal["start", "resume"] = "start"
    """`start` needs a new run directory, `resume` one that holds a run."""
    init_from: InitFrom | None = None
    """The checkpoint that a new run starts from; None: initial values."""
    argv: Sequence[str] = ()
    """The command, for the record."""
    quiet: bool = False
    """Print nothing on stderr; log.txt is written all the same."""
    changes: Sequence[Change] = ()
    """Settings that a resume changes; `launch` fills them in."""


@dataclass(frozen=True)
class RunWriter:
    """The files of a run, which rank 0 alone writes: on every other rank each call does nothing."""

    run: RunDir
    ledger: Ledger
    is_rank0: bool = True
    owner: dict[str, Any] = field(default_factory=lambda: process_identity(os.getpid()))
    """The process that a person started; state.json names it."""

    def on_rank(self, rank: int) -> Self:
        """The writer of one rank of several."""
        return self if rank == 0 else replace(self, ledger=self.ledger.silent(), is_rank0=False)

    def write(self, path: Path, text: str) -> None:
        """Replace a small file atomically. Raises StorageError."""
        if self.is_rank0:
            write_atomic(path, text)

    def write_state(self, record: StateRecord) -> None:
        """Replace state.json. Raises StorageError."""
        if self.is_rank0:
            self.run.write_state(record)

    def open_metrics(self, sync_seconds: float) -> Appender | SilentAppender:
        """metrics.jsonl, synced at least every `sync_seconds`."""
        return Appender(self.run.metrics, sync_seconds=sync_seconds) if self.is_rank0 else SilentAppender()


@dataclass(frozen=True)
class Job:
    """The argument of `train`."""

    inputs: Inputs
    start: Start
    output: RunWriter
    control: Control
    rank_info: RankInfo = field(default_factory=RankInfo)

    def on_rank(self, rank_info: RankInfo, heartbeat: Heartbeat) -> Self:
        """The same job on one rank of several."""
        output = self.output.on_rank(rank_info.rank)
        control = self.control.on_rank(output.ledger, heartbeat, is_rank0=output.is_rank0)
        return replace(self, rank_info=rank_info, output=output, control=control)

    @property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return self.inputs.recipe

    @property
    def run(self) -> RunDir:
        """Paths of the run."""
        return self.output.run

    @property
    def ledger(self) -> Ledger:
        """The ledger; silent on ranks other than 0."""
        return self.output.ledger

    @property
    def length(self) -> TrainingLength:
        """Length of the run at the start of this attempt: as the ledger shortened it, unless a change sets it anew."""
        resumes = self.start.mode == "resume"
        return resumed_length(self.inputs, self.ledger.past, self.start.changes) if resumes else self.inputs.length

    def write_recipe(self) -> None:
        """Replace recipe.toml: every value in force, with its origin."""
        self.output.write(self.run.recipe, self.inputs.resolved.to_toml())
