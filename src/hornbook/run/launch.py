"""The one door to a run: `launch(...) -> exit code`. What is behind it may be replaced.

Here are the lock, the signals, the first files of a run directory, and the refusal of everything that
would mix two runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from hornbook.errors import DoesNotFitError, Exit, UsageError
from hornbook.recipe import Recipe
from hornbook.resolve import Resolved
from hornbook.run.environment import check_data_lock
from hornbook.run.job import Inputs, Job, Origin, open_inputs
from hornbook.run.ledger import Ledger
from hornbook.run.requests import Inbox, refuse_if_held
from hornbook.run.signals import StopSignals
from hornbook.run.train import train
from hornbook.rundir import RunDir, RunLock, write_atomic

_SKELETON = {"run.lock", "control", "samples", "evals", "checkpoints"}


@dataclass(frozen=True)
class Start:
    """How a run is to begin."""

    mode: Literal["start", "resume"] = "start"
    """`start` wants a new run directory, `resume` one that holds a run."""
    origin: Origin | None = None
    """The checkpoint a new run takes over."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Dotted key -> {old, new}: settings that a resume changes."""
    argv: tuple[str, ...] = ()
    """The command, for the record."""


def launch(recipe: Recipe, run: RunDir, *, origins: Mapping[str, str], start: Start) -> Exit:
    """Train `recipe` in the run directory; DONE when finished, RESUMABLE when stopped, INTERRUPTED on a second Ctrl-C.

    Raises UsageError (the directory holds something else), InUseError, IntegrityError (data changed, all checkpoints
    damaged), DivergedError, DoesNotFitError, StorageError.
    """
    check_directory(run, start.mode)
    refuse_if_held(run)
    inputs = open_inputs(recipe)
    run.create()
    with StopSignals() as signals, RunLock(run):
        check_directory(run, start.mode)  # again: another start may have been faster
        run.clean()
        with Ledger(run) as ledger:
            write_first_files(run, inputs, origins, start)
            job = Job(
                run,
                inputs,
                ledger,
                Inbox(run, ledger, signals),
                start.mode,
                start.origin,
                {key: dict(change) for key, change in start.changes.items()},
                list(start.argv),
            )
            return _train(job)


def check_directory(run: RunDir, mode: Literal["start", "resume"]) -> None:
    """Raise UsageError unless the directory is free for a new run, or holds one to resume."""
    begun = run.recipe.is_file()
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
    if not run.path.exists():
        return True
    if not run.path.is_dir():
        return False
    inside = [
        entry for entry in run.path.iterdir() if entry.name not in _SKELETON | {run.data_lock.name, run.events.name}
    ]
    return not any(inside) and not any(run.checkpoints.glob("*"))


def write_first_files(run: RunDir, inputs: Inputs, origins: Mapping[str, str], start: Start) -> None:
    """data.lock and recipe.toml of a new run; for a resume, the check of the first and the update of the second."""
    if start.mode == "resume":
        check_data_lock(run.data_lock, inputs.corpus.lock())
    else:
        write_atomic(run.data_lock, json.dumps(inputs.corpus.lock(), indent=2) + "\n")
    if start.mode == "start" or start.changes:
        resolved = Resolved(inputs.recipe, {**origins, **inputs.derived})
        write_atomic(run.recipe, resolved.to_toml())


def _train(job: Job) -> Exit:
    """Run the loop, and name what a person can mend."""
    try:
        return train(job)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _does_not_fit(error) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise _does_not_fit(error) from error
    finally:
        job.inputs.loader.close()


def _does_not_fit(error: BaseException) -> DoesNotFitError:
    return DoesNotFitError(
        f"out of memory: {str(error).splitlines()[0]}. Lower --train.micro_batch (the result is the same up to "
        "rounding), or set --parallel.recompute block"
    )
