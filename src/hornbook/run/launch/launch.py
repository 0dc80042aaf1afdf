"""The one door to a run: `launch(...) -> exit code`. What is behind it may be replaced.

Here are the lock, the signals, the first files of a run directory, and the refusal of everything that
would mix two runs.
"""

import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from hornbook.errors import DoesNotFitError, Exit, RankLostError, UsageError
from hornbook.files.filesystem import exists, is_file, is_folder, list_folder
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.model.config.head import HeadConfig
from hornbook.model.hf.layout import parameter_shapes
from hornbook.model.init.init import check_overrides
from hornbook.parallel.world import SETUP_SECONDS, RankInfo
from hornbook.progress import progress_bar
from hornbook.run.job import Inputs, Job, open_inputs
from hornbook.run.launch.comparing import compare_ranks, rank_facts
from hornbook.run.launch.joining import joined_place
from hornbook.run.launch.meeting import await_leader, leading, wait_until
from hornbook.run.launch.pulse import Pulse
from hornbook.run.launch.rank import Report
from hornbook.run.launch.signals import StopSignals
from hornbook.run.launch.supervisor import Supervisor, preload
from hornbook.run.ledger import At, Ledger
from hornbook.run.observe.event_files import require_tensorboard
from hornbook.run.requests import Inbox, refuse_if_held
from hornbook.run.start.bound import describe_edits, edited_settings, recipe_in_force
from hornbook.run.start.environment import check_data_lock
from hornbook.run.start.kernels import compile_for
from hornbook.run.start.origin import Origin, check_tokenizer
from hornbook.run.start.precision import settle_precision
from hornbook.run.train import train
from hornbook.settings.recipe import Recipe
from hornbook.settings.resume_rules import Change, refuse_incompatible, resume_changes

_SKELETON = {"run.lock", "control", "samples", "evals", "checkpoints"}


@dataclass(frozen=True)
class Start:
    """How a run is to begin."""

    mode: Literal["start", "resume"] = "start"
    """`start` wants a new run directory, `resume` one that holds a run."""
    origin: Origin | None = None
    """The checkpoint a new run takes over."""
    argv: Sequence[str] = ()
    """The command, for the record."""
    quiet: bool = False
    """Show nothing on stderr."""


def launch(recipe: Recipe, run: RunDir, *, origins: Mapping[str, str], start: Start) -> Exit:
    """Train `recipe` in the run directory; DONE when finished, RESUMABLE when stopped, INTERRUPTED on a second Ctrl-C.

    `origins` tells where each value of the recipe came from. Where torchrun or Slurm started this process, it is one of
    the ranks, else it starts them. Raises UsageError (the directory holds something else, a resume would change what
    must not change, ranks differ), InUseError, IntegrityError (data changed, every checkpoint damaged), DivergedError,
    DoesNotFitError, StorageError, RetriesSpentError, RankLostError.
    """
    with progress_bar(shown=not start.quiet) as progress:
        progress("look at the device", 0, None)
        recipe, origins = settle_precision(recipe, origins)
    place = joined_place(os.environ, recipe.parallel.data)
    if place is not None:
        return _join(recipe, run, place, origins=origins, start=start)
    changes, inputs = check_start(recipe, run, start), read_inputs(recipe, start)
    compile_for(inputs)
    if recipe.parallel.data > 1:
        return _supervise(recipe, run, inputs, changes, origins=origins, start=start)
    with StopSignals(announces=not start.quiet) as signals, RunLock(run.create()):
        check_directory(run, start.mode)  # again: another start may have been faster
        with open_job(run, inputs, signals, start, changes, origins=origins) as job:
            return _train(job)


def _supervise(
    recipe: Recipe, run: RunDir, inputs: Inputs, changes: list[Change], *, origins: Mapping[str, str], start: Start
) -> Exit:
    """Start the ranks, and be their supervisor."""
    check_supervision()
    with progress_bar(shown=not start.quiet) as progress:
        progress("load torch", 0, None)
        preload()

    def next_job(again: bool) -> AbstractContextManager[Job]:
        if not again:
            return open_job(run, inputs, signals, start, changes, origins=origins)
        # The recipe is written, and the ledger knows the origin, and perhaps the changes.
        resumed = dataclasses.replace(start, mode="resume", origin=None)
        return open_job(run, inputs, signals, resumed, changed_settings(run, recipe), origins=origins)

    with StopSignals(announces=not start.quiet) as signals, RunLock(run.create(), shared=True):
        check_directory(run, start.mode)
        supervisor = Supervisor(run, recipe.guard, signals, quiet=start.quiet)
        return supervisor.run(next_job, _train, recipe.parallel.data)


def _join(recipe: Recipe, run: RunDir, place: RankInfo, *, origins: Mapping[str, str], start: Start) -> Exit:
    """Be one rank of a run whose ranks torchrun or Slurm started. Nothing is written before all are found equal."""
    assert place.connect is not None
    store, inputs = place.connect(), read_inputs(recipe, start)
    facts = rank_facts(recipe, inputs.corpus.lock())
    compare_ranks(store, place, facts | {"run directory": str(run.path.resolve()), "command": start.mode})
    announces = place.is_rank0 and not start.quiet
    with StopSignals(announces=announces) as signals, contextlib.ExitStack() as stack:
        if place.is_rank0:
            with leading(store, place.size) as told:
                changes = check_start(recipe, run, start)
                stack.enter_context(RunLock(run.create()))
                check_directory(run, start.mode)
                job = stack.enter_context(open_job(run, inputs, signals, start, changes, origins=origins))
                told["attempt"] = job.ledger.attempt
        else:
            told = await_leader(store)
            job = _follow(recipe, run, inputs, signals, start, told["attempt"])
        return _train(job.of_rank(place, Pulse(rank=place.rank)))


def _follow(recipe: Recipe, run: RunDir, inputs: Inputs, signals: StopSignals, start: Start, attempt: int) -> Job:
    """The job of a rank that does not lead, over the run directory that rank 0 holds; it writes nothing there.

    Rank 0 writes nothing more until all ranks have joined, so both read the same ledger.
    """
    if not wait_until(lambda: is_file(run.recipe), SETUP_SECONDS):  # a network file system may be late to show it
        raise UsageError(f"{run.path} of rank 0 is not seen here: --out must be on a file system all machines share")
    changes = changed_settings(run, recipe) if start.mode == "resume" else []
    ledger = Ledger(run, silent=True)
    ledger.attempt = attempt
    inbox = Inbox(run, ledger, signals, leads=False)
    return Job(run, inputs, ledger, inbox, start.mode, start.origin, changes)


def check_start(recipe: Recipe, run: RunDir, start: Start) -> list[Change]:
    """What a resume changes. Raises what stands in the way of this start in its directory, and writes nothing."""
    check_directory(run, start.mode)
    require_tensorboard(recipe.log)
    refuse_if_held(run)
    return changed_settings(run, recipe) if start.mode == "resume" else []


def read_inputs(recipe: Recipe, start: Start) -> Inputs:
    """The data, which an origin's tokenizer must fit. UsageError too if model.init.overrides is about no parameter."""
    with progress_bar(shown=not start.quiet) as progress:
        progress("read the data", 0, None)
        inputs = open_inputs(recipe)
    if recipe.model.init.overrides:
        check_overrides(recipe.model, parameter_shapes(recipe.model, inputs.vocab))
    if start.origin is not None:
        check_tokenizer(start.origin.checkpoint, inputs.tokenizer)
    return inputs


@contextlib.contextmanager
def open_job(
    run: RunDir,
    inputs: Inputs,
    signals: StopSignals,
    start: Start,
    changes: list[Change],
    *,
    origins: Mapping[str, str],
) -> Iterator[Job]:
    """One attempt: its ledger, and the first files of a run that starts. The run's lock is held."""
    run.clean()
    with Ledger(run) as ledger:
        job = Job(
            run=run,
            inputs=inputs,
            ledger=ledger,
            inbox=Inbox(run, ledger, signals),
            mode=start.mode,
            origin=start.origin,
            changes=changes,
            argv=list(start.argv),
            origins=dict(origins),
            quiet=start.quiet,
        )
        lock_data(job)
        if start.mode == "start":
            if start.origin is not None:  # before the recipe makes this a run: a resume must know where it began
                windows = list(start.origin.windows)
                ledger.note("origin", At(), origin=start.origin.record(), windows=windows)
            job.write_recipe()
        yield job


def check_supervision() -> None:
    """Raise UsageError where this process cannot start ranks of its own."""
    if sys.platform != "linux":
        raise UsageError("--parallel.data above 1 starts its processes on Linux only: use torchrun here")
    if threading.active_count() > 1:
        raise UsageError(
            f"--parallel.data above 1 forks, which {threading.active_count() - 1} other threads of this process would "
            "not survive: run `hornbook train` as a process of its own"
        )


def changed_settings(run: RunDir, recipe: Recipe) -> list[Change]:
    """What a resume with `recipe` changes; UsageError naming old, new and `fork` for what must not change."""
    old = recipe_in_force(run)
    path = old.data.path if recipe.data.path is None else str(Path(recipe.data.path).resolve())
    settled = recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update={"path": path}),
            "model": recipe.model.model_copy(
                update={"vocab": recipe.model.vocab or old.model.vocab, "head": _settled_head(recipe, old)}
            ),
        }
    )
    changes = resume_changes(old, settled)
    try:
        refuse_incompatible(changes)
    except UsageError as error:
        edits = [edit for edit in edited_settings(run) if edit.policy == "refused"]
        raise UsageError(f"{error}\n{describe_edits(run, edits)}: put these values back") if edits else error from None
    return changes


def _settled_head(recipe: Recipe, old: Recipe) -> HeadConfig:
    """The head with the labels of the run where `recipe` leaves them to the data."""
    head, before = recipe.model.head, old.model.head
    if getattr(head, "labels", None) == [] and head.kind == before.kind:
        return head.model_copy(update={"labels": getattr(before, "labels", [])})
    return head


def lock_data(job: Job) -> None:
    """Write data.lock at the start of a run; at a resume, see that the data is still what it says."""
    current = job.inputs.corpus.lock()
    if job.mode == "resume":
        check_data_lock(job.run.data_lock, current)
    else:
        job.write(job.run.data_lock, json.dumps(current, indent=2) + "\n")


def check_directory(run: RunDir, mode: Literal["start", "resume"]) -> None:
    """Raise UsageError unless the directory is free for a new run, or holds one to resume."""
    begun = is_file(run.recipe)
    if mode == "resume":
        if not begun:
            raise UsageError(f"{run.path} holds no run: start one with `hornbook train RECIPE --out {run.path}`")
        return
    if begun:
        raise UsageError(
            f"{run.path} already holds a run: `hornbook resume {run.path}` goes on with it, another --out starts anew"
        )
    if not is_empty(run):
        raise UsageError(f"{run.path} is not empty and holds no run: give --out a new folder")


def is_empty(run: RunDir) -> bool:
    """Whether the directory is missing, empty, or only prepared by a start that was killed before its first file."""
    if not exists(run.path):
        return True
    if not is_folder(run.path):
        return False
    inside = [
        entry for entry in run.path.iterdir() if entry.name not in _SKELETON | {run.data_lock.name, run.events.name}
    ]
    return not any(inside) and not (is_folder(run.checkpoints) and list_folder(run.checkpoints))


def _train(job: Job) -> Exit:
    """Run the loop, and name what a person can mend."""
    try:
        return train(job)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _does_not_fit(error) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise _does_not_fit(error) from error
        if job.place.size > 1 and Report.of(error).by_peer:
            raise RankLostError(f"another rank went away: {error}. Start all ranks again") from error
        raise
    finally:
        job.inputs.loader.close()


def _does_not_fit(error: BaseException) -> DoesNotFitError:
    return DoesNotFitError(
        f"out of memory: {str(error).splitlines()[0]}. Lower --train.micro_batch (the result is the same up to "
        "rounding), or set --parallel.recompute block"
    )
