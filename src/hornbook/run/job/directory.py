"""Whether a directory is free for a new run, or holds one to resume."""

from typing import Literal

from hornbook.errors import UsageError, quoted
from hornbook.files.filesystem import exists, is_file, is_folder, list_folder
from hornbook.files.run_directory import RunDir

_SKELETON = {"run.lock", "control", "samples", "evals", "checkpoints", "data.lock", "events.jsonl"}
"""Entries of a run directory whose start was killed before recipe.toml was written."""


def check_directory(run: RunDir, mode: Literal["start", "resume"]) -> None:
    """Raise UsageError unless the directory is free for a new run, or holds one to resume."""
    begun = is_file(run.recipe)
    if mode == "resume":
        if not begun:
            raise UsageError(
                f"{run.path} holds no run: start one with `hornbook train RECIPE --out {quoted(run.path)}`"
            )
        return
    if begun:
        raise UsageError(
            f"{run.path} already holds a run: `hornbook resume {quoted(run.path)}` goes on with it, another --out "
            "starts anew"
        )
    if not is_empty(run):
        raise UsageError(f"{run.path} is not empty and holds no run: give --out a new folder")


def is_empty(run: RunDir) -> bool:
    """Whether the directory is missing, empty, or only prepared by a start that was killed before its first file."""
    if not exists(run.path):
        return True
    if not is_folder(run.path) or any(entry.name not in _SKELETON for entry in run.path.iterdir()):
        return False
    return not (is_folder(run.checkpoints) and list_folder(run.checkpoints))
