"""From raw text to clean documents: measure, decide, apply (docs/architecture.md, "text").

The result is a function of the inputs and the configuration: not of the number of workers, of kills or of time. The
phases may run in one process tree, or each as an array of jobs that take every n-th task and share a file system.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from hornbook.errors import UsageError
from hornbook.files.artifact import digest_of
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.progress import Progress, silent
from hornbook.text.config.labels import ClassLabels, LabelsConfig, TagLabels
from hornbook.text.config.text import TextConfig
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.labels.rows import with_names
from hornbook.text.pool import Where, run_tasks
from hornbook.text.refinery.pipeline import folder
from hornbook.text.refinery.pipeline.apply import Applied, ApplyTask, apply
from hornbook.text.refinery.pipeline.decide import KEPT, decide, read_verdicts, write_verdicts
from hornbook.text.refinery.pipeline.funnel import Funnel, SourceFunnel
from hornbook.text.refinery.pipeline.measure import measure
from hornbook.text.refinery.pipeline.plan import Measured, MeasureTask, list_all, plan, workers_for
from hornbook.text.refinery.step import build

Phase = Literal["measure", "decide", "write"]
Task = TypeVar("Task", MeasureTask, ApplyTask)
Result = TypeVar("Result")
WHOLE = slice(None)
"""The share of a job that does a phase alone; of `count` jobs, number `index` takes `slice(index, None, count)`."""


def prepare(
    config: TextConfig,
    out: Path,
    *,
    workers: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    on: Where = "here",
) -> Funnel:
    """Read all sources, refine them and write the folder `out`; a killed run continues.

    `workers` 0 takes one process per core. If `out` is already finished for the same configuration and the
    same input bytes, its funnel is returned.

    Raises UsageError (nothing to read, `out` holds something else), IntegrityError (a damaged row with `strict`;
    nothing left to keep), StorageError, InUseError.
    """
    inputs = list_all(config)
    folder.make_folder(out)
    with RunLock(RunDir(out)):
        RunDir(out).clean()
        done = None if overwrite else folder.finished(config, inputs, out)
        if done is not None:
            folder.forget_work(out)
            return done
        job = _Job(config, inputs, out, workers, progress or silent, on)
        if overwrite:
            folder.clear(out)
        folder.begin(config, out)
        return _finish(job)


def prepare_share(
    config: TextConfig,
    out: Path,
    phase: Phase,
    share: slice = WHOLE,
    *,
    workers: int = 0,
    progress: Progress | None = None,
    on: Where = "here",
) -> str:
    """Do one phase, or one job's share of it, which `prepare` then need not do. Returns a line that says what was done.

    Raises UsageError where the phase before is not finished, or `out` is another's folder; and what `prepare` raises.
    """
    inputs = list_all(config)
    folder.make_folder(out)
    if folder.finished(config, inputs, out) is not None:
        return f"{out} is finished"
    job = _Job(config, inputs, out, workers, progress or silent, on)
    folder.begin(config, out)
    if phase == "measure":
        return f"measured {len(job.measure(share))} of {len(job.tasks)} tasks"
    job.require_measured()
    tasks = job.decide(before=phase == "write")
    if phase == "decide":
        return f"decided about {len(tasks)} tasks"
    return f"wrote {len(job.write(tasks, share))} of {len(tasks)} tasks"


@dataclass
class _Job:
    """The phases over the tasks of one folder."""

    config: TextConfig
    inputs: dict[str, list[InputFile]]
    out: Path
    workers: int
    progress: Progress
    on: Where

    def __post_init__(self) -> None:
        self._steps = build(self.config.all_steps)  # raises before anything is written or deleted
        self.tasks = plan(self.config, self.inputs, self.out / folder.WORK)
        self._total = sum(task.size for task in self.tasks)
        self.workers = workers_for(self.workers, self.tasks, self._total)

    def _run(self, name: str, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        total, done = sum(task.size for task in tasks), 0
        for task, result in zip(tasks, run_tasks(function, tasks, self.workers, self.on), strict=True):
            yield result
            done += task.size
            self.progress(name, done, total)

    def measure(self, share: slice = WHOLE) -> list[Measured]:
        """Phase 1 for a share of the tasks."""
        return list(self._run("read and measure", measure, self.tasks[share]))

    def require_measured(self) -> None:
        """Raises UsageError where a task of phase 1 is not done."""
        missing = [task.ordinal for task in self.tasks if not task.is_measured()]
        if missing:
            raise UsageError(
                f"{len(missing)} of {len(self.tasks)} tasks are not measured (the first is {missing[0]}): "
                "finish all shards of `--phase measure` first"
            )

    def decide(self, *, before: bool = False) -> list[ApplyTask]:
        """Phase 2, unless an earlier run did it.

        before: Raises UsageError where none did, because jobs that share phase 3 must not all do phase 2.
        """
        work, key = self.out / folder.WORK, digest_of([task.key() for task in self.tasks])
        found = read_verdicts(work, key)
        if found is None and before:
            raise UsageError("nothing is decided about these inputs yet: run `--phase decide` first")
        if found is None:
            folder.require_named(self.config, self.tasks, self.out)
            found = decide(self.tasks, self._steps, work / "scratch")
            write_verdicts(work, key, *found)
        self.progress("decide", self._total, self._total)
        names, verdicts = found
        pairs = zip(self.tasks, verdicts, strict=True)
        return [ApplyTask(task, tuple(names), verdict, self.out) for task, verdict in pairs]

    def write(self, tasks: Sequence[ApplyTask], share: slice = WHOLE) -> list[Applied]:
        """Phase 3 for a share of the tasks."""
        return list(self._run("write", apply, tasks[share]))


def _finish(job: _Job) -> Funnel:
    measured = job.measure()
    tasks = job.decide()
    applied = job.write(tasks)
    funnel = _count(job.tasks, measured, applied)
    labels = None if job.config.labels is None else _list_labels(job.config.labels, applied, funnel)
    folder.write_whole(job.config, tasks, funnel, job.out)
    folder.require_documents(funnel, job.out)
    folder.commit(job.config, labels, job.tasks, measured, applied, job.out)
    return funnel


def _list_labels(config: LabelsConfig, applied: list[Applied], funnel: Funnel) -> LabelsConfig:
    """The configuration of labels with the list of their names; the funnel gets their counts."""
    counts = sum((Counter(each.labels) for each in applied), Counter[str]())
    named = with_names(config, counts)
    if isinstance(named, ClassLabels | TagLabels):
        funnel.labels = {name: counts[name] for name in named.labels}
    return named


def _count(tasks: list[MeasureTask], measured: list[Measured], applied: list[Applied]) -> Funnel:
    funnel = Funnel()
    for task, result, written in zip(tasks, measured, applied, strict=True):
        source = funnel.sources.setdefault(task.source, SourceFunnel())
        source.files += sum(not file.part[0] for file in task.files)
        source.text_bytes += written.text_bytes
        for reason, counts in result.quarantined.items():
            source.quarantined[reason].add(*counts)
        for reason, counts in (*result.blank.items(), *written.reasons.items()):
            (source.kept if reason == KEPT else source.dropped[reason]).add(*counts)
        source.count_changes(written.changed)
    assert funnel.total().read.rows == sum(result.rows for result in measured)  # every row has one outcome
    return funnel
