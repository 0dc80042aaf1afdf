"""How a checkpoint becomes visible: all of it or nothing, at any crash.

    write into .tmp-step-N-PID  ->  sync files  ->  MANIFEST.json  ->  sync directories  ->  rename  ->  sync parent

A reader that sees `step-N` sees all of it, on disk. Whatever carries the prefix `.tmp-` is unfinished or being
deleted and may go at any time. A step that is saved again takes the place of the old one over `step-N.old`,
so that one of the two is there at every moment.
"""

import re
from collections.abc import Callable
from pathlib import Path

from hornbook.errors import IntegrityError, StorageError
from hornbook.files.durable import storage_errors, writing_folder
from hornbook.files.filesystem import is_folder, is_own_folder, list_folder
from hornbook.files.run_directory import checkpoint_name
from hornbook.run.checkpoints.manifest import Manifest, write_manifest

LATEST = "latest"
BEST = "best"

_NAME = re.compile(r"step-(\d{8,})(\.old)?")


def step_of(folder: Path) -> int | None:
    """Step of a checkpoint directory by its name, None for anything else."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else None


def newest_step(parent: Path) -> int:
    """Step of the newest checkpoint by its name, whole or not; -1 where there is none."""
    return next((step_of(folder) or 0 for folder in list_checkpoints(parent)), -1)


def list_checkpoints(parent: Path) -> list[Path]:
    """Committed directories, newest step first; a copy about to be replaced comes after its replacement."""
    if not is_folder(parent):
        return []
    found = [path for path in list_folder(parent) if step_of(path) is not None and is_own_folder(path)]
    return sorted(found, key=lambda path: (-(step_of(path) or 0), path.name))


def commit(parent: Path, write: Callable[[Path], None], manifest: Manifest) -> tuple[Path, Manifest]:
    """Let `write` fill a directory and publish it; when this returns, the checkpoint survives a power cut.

    manifest: all but the files, which are those that `write` makes. Returns the directory and its manifest.
    Raises StorageError where the disk is full or fails; what was there before is then still there.
    """
    target = parent / checkpoint_name(manifest.step)
    try:
        with storage_errors(target), writing_folder(target, synced=True) as stage:
            write(stage)
            manifest = write_manifest(stage, manifest)
    except IntegrityError as error:  # what was written a moment ago does not read back
        raise StorageError(f"cannot write {target}: {error}; check the disk") from error
    return target, manifest


def read_pointer(directory: Path, name: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, if it is there. Raises OSError where that cannot be seen."""
    try:
        folder = directory / (directory / name).read_text().strip()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return folder if folder.parent == directory and step_of(folder) is not None and is_folder(folder) else None
