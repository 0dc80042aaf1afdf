"""Observers of a run: each gets every finished step, and none changes the state of training."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from hornbook.errors import StorageError
from hornbook.files.ballast import with_room
from hornbook.files.journal import Appender
from hornbook.files.run_directory import RunDir, StateRecord, Status
from hornbook.parallel.world import World
from hornbook.run.checkpoints.state import State
from hornbook.run.doctor.curve_rules import Diagnosis
from hornbook.run.doctor.run_history import facts_of
from hornbook.run.doctor.run_report import conclusion
from hornbook.run.job.job import Job
from hornbook.run.ledger.interventions import Course
from hornbook.run.ledger.ledger import Ledger, Position, RunWriter
from hornbook.run.ledger.step_report import Step
from hornbook.run.ledger.token_costs import work_of
from hornbook.run.ledger.training_length import TrainingLength
from hornbook.run.machine.choose_dtype import describe_precision
from hornbook.run.machine.process_memory import memory_of
from hornbook.run.observe.alerts import Alerts, to_stderr
from hornbook.run.observe.console import Console, Header, Watch
from hornbook.run.observe.evaluation import Evaluation, Samples
from hornbook.run.observe.memory_log import MemoryLog
from hornbook.run.observe.prediction import Prediction
from hornbook.run.observe.profile import StepProfile
from hornbook.run.observe.slowdown import Slowdown
from hornbook.run.observe.statistics_log import StatisticsLog
from hornbook.run.observe.step_bill import StepBill
from hornbook.run.observe.straggler import Straggler
from hornbook.run.observe.trackers.packages import make_trackers
from hornbook.run.observe.trackers.tracker import TrackerThread

Observer = Callable[[Step], None]

STATE_SECONDS = 1.0
"""Shortest time between two writes of state.json."""


class Metrics:
    """One line in metrics.jsonl per step; nothing on ranks other than 0, which have no appender."""

    def __init__(self, appender: Appender | None, bill: StepBill, ballast: Path) -> None:
        self._appender, self._bill, self._ballast = appender, bill, ballast

    def __call__(self, step: Step) -> None:
        record = {**step.record(), **self._bill.take_record()}
        if self._appender is not None:
            with_room(self._ballast, functools.partial(self._appender.append, record))

    def sync(self) -> dict[str, Any]:
        """Return when every line is on disk: size and digest of the file, for the ledger (`Appender.extent`)."""
        if self._appender is None:
            return {}
        self._appender.check()
        self._appender.sync()
        return self._appender.extent


class StateFile:
    """state.json, at most once a second: the position of the run, and that it lives."""

    def __init__(self, output: RunWriter, total_tokens: int) -> None:
        self._output, owner = output, output.owner
        self._written = -STATE_SECONDS
        self._record: StateRecord = {
            "attempt": 0,
            "step": 0,
            "tokens": 0,
            "status": "running",
            "heartbeat": 0.0,
            "total_tokens": total_tokens,
            "loss": None,
            "pid": owner["pid"],
            "host": owner["host"],
            "boot": owner["boot"],
            "started": owner["started"],
        }

    def __call__(self, step: Step) -> None:
        self._record.update({"attempt": step.attempt, "step": step.step, "tokens": step.tokens, "loss": step.loss})
        if time.monotonic() - self._written >= STATE_SECONDS:
            self.write("running")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.write("stopped" if issubclass(kind, KeyboardInterrupt) else "failed")

    def start(self, attempt: int, at: Position) -> None:
        """Write that the run is up, before its first step."""
        self._record.update({"attempt": attempt, "step": at.step, "tokens": at.tokens})
        self.write("running")

    def shorten(self, total_tokens: int) -> None:
        """Set a new length of the run."""
        self._record["total_tokens"] = total_tokens

    def write(self, status: Status) -> None:
        """Write the file now."""
        self._record.update({"status": status, "heartbeat": time.time()})
        with contextlib.suppress(StorageError):  # the next write tries again; a save reports the disk
            self._output.write_state(self._record)
        self._written = time.monotonic()


@dataclass(frozen=True)
class Observers:
    """All observers of a run, in the order in which they are called."""

    bill: StepBill
    metrics: Metrics
    state_file: StateFile
    consoles: list[Console]
    evaluation: Evaluation
    samples: Samples
    profile: StepProfile
    trackers: list[TrackerThread]
    memory: list[MemoryLog]
    statistics: StatisticsLog
    prediction: Prediction

    def __iter__(self) -> Iterator[Observer]:
        yield from (self.bill, self.metrics, self.state_file, *self.consoles, *self.trackers)
        yield from (*self.memory, self.statistics, self.prediction, self.evaluation, self.samples, self.profile)

    def start(self, attempt: int, at: Position) -> None:
        """The run is up, before its first step."""
        self.state_file.start(attempt, at)
        self.profile.start(at.step)
        self.prediction.start()

    def note(self, text: str) -> None:
        """Show a line on every console."""
        for console in self.consoles:
            console.note(text)

    def conclude(self, at: Position, run: RunDir) -> None:
        """At the end of a run compare it with its plan, score every validation token, and show whether more are worth
        it."""
        self.prediction.conclude(at)
        self.evaluation.score_all(at)
        if self.consoles and (text := conclusion(run)):
            self.note(text)

    def slowed(self, found: Slowdown | Straggler, at: Position, ledger: Ledger) -> None:
        """Show a lasting change of the throughput, or of one rank's, and write it to the ledger."""
        self.note(str(found))
        ledger.note(found.event, at, text=str(found), **asdict(found))

    def shorten(self, step: int, length: TrainingLength, why: str) -> None:
        """Set the new length of a run that was shortened after `step`, and show it."""
        self.state_file.shorten(length.tokens)
        for console in self.consoles:
            console.shorten(step, length.steps_from(0), length.tokens, why)

    def change(self, course: Course) -> None:
        """Show the settings in force from here on."""
        for console in self.consoles:
            console.update(**_in_force(course))


@contextlib.contextmanager
def open_observers(job: Job, state: State, consoles: list[Console]) -> Iterator[Observers]:
    """The observers of this rank; only rank 0's write or show anything. An exception sets state.json to `failed`."""
    with contextlib.ExitStack() as stack:
        output, lines = job.output, None
        if output.is_rank0:
            lines = stack.enter_context(Appender(job.run.metrics, sync_seconds=job.recipe.log.sync_seconds))
        state_file = stack.enter_context(StateFile(output, job.length.tokens))
        evaluation, samples = Evaluation(job, state.engine, consoles), Samples(job, state.engine, consoles)
        trackers: list[TrackerThread] = []
        memory: list[MemoryLog] = []
        log = job.recipe.log
        if output.is_rank0 and (log.memory_every or log.memory_snapshot):
            sizes = stack.enter_context(Appender(job.run.memory)) if log.memory_every else None
            memory.append(MemoryLog(job, state, sizes))

        def notify(found: Slowdown | Straggler, step: Step) -> None:
            observers.slowed(found, step, output.ledger)

        bill = StepBill(job.inputs, state.engine.world, notify, consoles)
        profile = stack.enter_context(StepProfile(job, consoles))
        metrics = Metrics(lines, bill, job.run.ballast)
        scoring = evaluation, samples, profile
        path, facts = job.run.statistics if output.is_rank0 else None, facts_of(job.recipe, job.length.tokens)

        def foresee(found: Diagnosis, step: Step) -> None:
            observers.note(f"warning: {found.title}: {found.evidence}. {found.remedy}")
            output.ledger.note("precursor", step, rule=found.name, text=found.evidence)

        statistics = stack.enter_context(StatisticsLog(state, path, facts, foresee))
        looking = memory, statistics, Prediction(job, state.engine.world, consoles)
        observers = Observers(bill, metrics, state_file, consoles, *scoring, trackers, *looking)
        for listener in job.ledger.listeners:
            if isinstance(listener, Alerts):
                listener.show = observers.note
                stack.callback(setattr, listener, "show", to_stderr)  # the consoles end before the ledger
        for tracker in make_trackers(job.recipe, job.run) if output.is_rank0 else ():
            trackers.append(stack.enter_context(TrackerThread(tracker, observers.note)))
            job.ledger.listeners.append(trackers[-1].listen)
            samples.listeners.append(trackers[-1].sample)
        yield observers


@contextlib.contextmanager
def open_consoles(job: Job, world: World) -> Iterator[list[Console]]:
    """log.txt, and stderr unless the start is quiet, before the model is built; none on ranks other than 0."""
    with contextlib.ExitStack() as stack:
        if not job.output.is_rank0:
            yield []
            return
        header, every = describe_run(job, world), job.recipe.log.every
        log = stack.enter_context(job.run.log.open("a", encoding="utf-8"))
        consoles = [stack.enter_context(Console(header, every=every, stream=log, live=False))]
        if not job.start.quiet:
            shown = Console(header, every=every, watch=watch_of(job, world))
            if shown.live:
                job.control.signals.announces = False  # the panel shows a stop; a line on stderr would break it
            consoles.append(stack.enter_context(shown))
        yield consoles


def watch_of(job: Job, world: World) -> Watch:
    """The live values of the panel."""

    def memory() -> str:
        return f"{memory_of(world.device)}{' (rank 0)' if world.size > 1 else ''}"

    def doing() -> tuple[str, int]:
        status = job.control.heartbeat.read()
        return status.phase, status.step

    return Watch(stopping=lambda: job.control.interrupted, memory=memory, doing=doing)


def describe_run(job: Job, world: World) -> Header:
    """The header of the consoles."""
    recipe = job.recipe
    return Header(
        name=job.run.name,
        parameters=job.inputs.parameters,
        precision=describe_precision(job.inputs.resolved),
        device=str(world.device),
        work=work_of(recipe.model, recipe.data, job.inputs.vocab, recipe.train.sequence),
        **_in_force(job.course.to_end()),
    )


def _in_force(course: Course) -> dict[str, Any]:
    """Those fields of the header that a run may change on its way."""
    recipe, length = course.recipe, course.length
    return {
        "batch_tokens": recipe.train.batch_tokens,
        "total_steps": length.steps_from(0),
        "total_tokens": length.tokens,
        "schedule": recipe.optim.schedule.kind,
        "ramp": recipe.train.ramp.kind != "none" or len(length.batches.sizes) > 1,
    }
