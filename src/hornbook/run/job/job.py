"""One attempt of a run, as one rank sees it: the inputs it reads, the files it writes, and what steers it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Self

from hornbook.files.run_directory import RunDir
from hornbook.parallel.world import RankInfo
from hornbook.run.checkpoints.bound import base_recipe
from hornbook.run.checkpoints.memory_copies import CopyMemory, RankCopies
from hornbook.run.job.control import Control
from hornbook.run.job.deadline import Deadline
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.job.run_inputs import Inputs, resumed_length
from hornbook.run.job.signals import StopSignals
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.ledger.interventions import Course, sorted_by_step
from hornbook.run.ledger.ledger import Ledger, Monotone, RunWriter
from hornbook.run.ledger.training_length import TrainingLength
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.settings.resume_rules import Change

if TYPE_CHECKING:
    from hornbook.run.job.faults import FaultInjector


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
    ends_interventions: bool = False
    """Whether these changes take the place of the run's interventions (`interventions.ends_interventions`)."""
    suppressed: frozenset[tuple[str, int]] = frozenset()
    """Decisions of the guard that are not taken, as (kind, step): what would have been without them."""
    faults: "FaultInjector | None" = None
    """What is to go wrong, to try it out; None: nothing is injected."""
    until: float | None = None
    """When the run has to have stopped, in seconds since 1970 by the clock of rank 0; None: when it is finished."""


@dataclass(frozen=True)
class Job:
    """The argument of `train`."""

    inputs: Inputs
    start: Start
    output: RunWriter
    control: Control
    rank_info: RankInfo = field(default_factory=RankInfo)
    copies: RankCopies | None = None
    """Where this rank keeps copies of the state that outlive it; None: nowhere."""

    def on_rank(self, rank_info: RankInfo, heartbeat: Heartbeat, memory: CopyMemory | None = None) -> Self:
        """The same job on one rank of several, with its part of the memory for copies."""
        output = self.output.on_rank(rank_info.rank)
        control = Control(output, self.control.signals, heartbeat, self.control.faults, self.control.deadline)
        copies = memory.of_rank(rank_info.rank) if memory is not None else None
        return replace(self, rank_info=rank_info, output=output, control=control, copies=copies)

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

    @property
    def course(self) -> Course:
        """The settings at the first step of the run, and the interventions that the ledger has."""
        return course_of(self.inputs, self.ledger.past, self.start)

    @property
    def saved_course(self) -> Course:
        """The same as it was when the checkpoints were saved."""
        past = self.ledger.past
        if not self.start.ends_interventions:
            return self.course
        base = Resolved(base_recipe(self.run, past), {})
        return replace(self.course, resolved=base, known=sorted_by_step(past.interventions))

    def write_recipe(self) -> None:
        """Replace recipe.toml: every value in force, with its origin."""
        self.output.write(self.run.recipe, self.course.to_end().resolved.to_toml())


def steered_job(inputs: Inputs, start: Start, output: RunWriter, signals: StopSignals) -> Job:
    """A job that signals, and the faults and the deadline of its start, steer."""
    if start.faults is not None:
        start.faults.begin(output.ledger)
    control = Control(output, signals, faults=start.faults, deadline=Deadline(start.until))
    return Job(inputs, start, output, control)


def silent_job(inputs: Inputs, run: RunDir, start: Start) -> Job:
    """A job that reads the ledger of a run, if it has one, and writes nothing."""
    output = RunWriter(run, Ledger(run, silent=True), is_rank0=False)
    return Job(inputs, start, output, Control(output, StopSignals()))


def course_of(inputs: Inputs, past: Monotone, start: Start) -> Course:
    """The settings at the first step of a run with these inputs, and the interventions of its past."""
    if start.mode != "resume":
        return Course(inputs.resolved, inputs.length)
    known = () if start.ends_interventions else sorted_by_step(past.interventions)
    return Course(inputs.resolved, resumed_length(inputs, past, start.changes), known)
