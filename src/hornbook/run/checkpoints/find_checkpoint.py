"""Finds checkpoints: the one that a person names, and the newest of a run."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.filesystem import exists, is_file, is_folder
from hornbook.files.run_directory import RunDir, checkpoint_name
from hornbook.files.safetensors import PICKLE_SUFFIXES, read_header_inside
from hornbook.run.checkpoints.bound import why_foreign
from hornbook.run.checkpoints.commit import BEST, LATEST, list_checkpoints, read_pointer, step_of
from hornbook.run.checkpoints.manifest import MANIFEST, Manifest, verify_folder
from hornbook.run.ledger.ledger import read_past

HOW_TO_GET = (
    "get one with `hf download OWNER/NAME --local-dir FOLDER` (pip install huggingface_hub; the original GPT-2 is "
    "openai-community/gpt2)"
)
"""Remedy for a name of a model on the Hub."""

_log = logging.getLogger(__name__)


def newest_verified(directory: Path) -> Path | None:
    """The newest checkpoint of which every byte is as its manifest says, or None; damaged ones are logged."""
    return _newest_undamaged(directory)[0]


def _newest_undamaged(directory: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """(newest undamaged checkpoint or None, problems of newer ones, logged); a foreign one if there is no other."""
    problems: list[tuple[Path, str]] = []
    foreign: Path | None = None
    for folder, problem, whole in examine(directory, verify_folder, lambda found: _why_foreign(directory, found)):
        if not problem:
            return _found(folder, problems)
        problems.append((folder, problem))
        if whole:
            foreign = foreign or folder
    return _found(foreign, problems) if foreign is not None else (None, problems)


def _found(folder: Path, problems: list[tuple[Path, str]]) -> tuple[Path, list[tuple[Path, str]]]:
    for _, problem in problems:
        _log.warning("%s; %s is used", problem, folder.name)
    return folder, problems


def examine(
    directory: Path,
    verify: Callable[[Path], Manifest],
    why_foreign: Callable[[Manifest], str | None],
    up_to: int | None = None,
) -> Iterator[tuple[Path, str, bool]]:
    """(folder, its problem, whether it is undamaged) of each checkpoint, newest first; "" where it can be used.

    up_to: only those of at most so many steps.
    """
    for folder in list_checkpoints(directory):
        if up_to is not None and (step_of(folder) or 0) > up_to:
            continue
        try:
            manifest = verify(folder)
        except IntegrityError as error:
            yield folder, str(error), False
            continue
        reason = why_foreign(manifest)
        yield folder, f"{folder}: {reason}" if reason else "", True


def _why_foreign(directory: Path, manifest: Manifest) -> str | None:
    """Why a checkpoint does not belong to the run it lies in; None: it does, or the ledger is missing or damaged."""
    run = RunDir(directory.parent)
    with contextlib.suppress(IntegrityError):  # weights can be used without the ledger
        return why_foreign(run, read_past(run), manifest)
    return None


def checkpoint_path(target: str | Path, step: int | None = None) -> Path:
    """The verified checkpoint that a run, a checkpoint, or a pointer (`RUN/checkpoints/best`) names.

    For a run: the checkpoint of `step`, else the newest that verifies. A folder without a manifest (any Hugging Face
    directory) is taken if its weights are safetensors. Raises UsageError where there is no such thing, IntegrityError
    where it is damaged or holds a pickle.
    """
    path = Path(target)
    if path.name in (LATEST, BEST) and is_file(path):
        path = read_pointer(path.parent, path.name) or path
    if not exists(path):
        raise UsageError(
            f"{path}: no such run or checkpoint here. Of a Hugging Face model give a local folder; {HOW_TO_GET}"
        )
    if not is_folder(path):
        raise UsageError(f"{path} is not a run or checkpoint directory")
    directory = RunDir(path).checkpoints if is_folder(RunDir(path).checkpoints) else path
    if directory != path or list_checkpoints(path):
        return _choose_checkpoint(directory, step)
    if step is not None:
        raise UsageError(f"{path} is one checkpoint: a step can be chosen of a run only")
    if exists(path / MANIFEST):
        verify_folder(path)
    check_weights(path)
    return path


def check_weights(folder: Path) -> None:
    """IntegrityError unless the folder's weights are safetensors files; a pickle is never opened."""
    names = sorted(entry.name for entry in folder.iterdir())
    tensors = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if not tensors and pickles:
        raise IntegrityError(
            f"{folder}: the weights are in a pickle ({pickles[0]}), which can run any code when it is read; "
            "hornbook reads safetensors only: convert the file where that is safe"
        )
    if not tensors:
        raise IntegrityError(f"{folder}: there are no weights (*.safetensors) in it")
    for name in tensors:
        read_header_inside(folder, name)


def _choose_checkpoint(directory: Path, step: int | None) -> Path:
    there = list_checkpoints(directory)
    if not there:
        raise UsageError(f"{directory} has no checkpoint yet")
    if step is None:
        newest, damaged = _newest_undamaged(directory)
        if newest is None:
            raise IntegrityError(all_damaged(damaged))
        return newest
    folder = directory / checkpoint_name(step)
    if folder not in there:
        steps = ", ".join(str(step_of(path)) for path in reversed(there))
        raise UsageError(f"{directory} has no checkpoint of step {step}; there are: {steps}")
    verify_folder(folder)
    return folder


def all_damaged(damaged: list[tuple[Path, str]]) -> str:
    """The error text where no checkpoint of a run verifies; damaged: (folder, problem) of each."""
    lines = "".join(f"\n  {problem}" for _, problem in damaged)
    return (
        f"no checkpoint of this run can be used:{lines}\n"
        "restore one from a copy, or begin again in another folder; nothing was deleted"
    )
