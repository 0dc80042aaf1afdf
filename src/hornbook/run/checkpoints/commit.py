"""How a checkpoint becomes visible: all of it or nothing, at any crash.

    write into .tmp-step-N-PID  ->  sync files  ->  MANIFEST.json  ->  sync directories  ->  rename  ->  sync parent

A reader that sees `step-N` sees all of it, on disk. Whatever carries the prefix `.tmp-` is unfinished or being
deleted and may go at any time. A step that is saved again takes the place of the old one over `step-N.old`,
so that one of the two is there at every moment.
"""

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hornbook.errors import IntegrityError, StorageError
from hornbook.files.durable import TEMPORARY, storage_error, sync_directory
from hornbook.files.filesystem import exists, is_folder, list_folder
from hornbook.run.checkpoints.manifest import Manifest, ValidationLoss, write_manifest

LATEST = "latest"
BEST = "best"

_NAME = re.compile(r"step-(\d{8,})(\.old)?")
_HEADROOM = 1.2


def checkpoint_name(step: int) -> str:
    """`step-00000500`."""
    return f"step-{step:08d}"


def step_of(folder: Path) -> int | None:
    """Step of a checkpoint directory by its name, None for anything else."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else None


def list_checkpoints(parent: Path) -> list[Path]:
    """Committed directories, newest step first; a copy about to be replaced comes after its replacement."""
    if not is_folder(parent):
        return []
    found = [path for path in list_folder(parent) if step_of(path) is not None and _is_own_folder(path)]
    return sorted(found, key=lambda path: (-(step_of(path) or 0), path.name))


def commit(
    parent: Path,
    write: Callable[[Path], None],
    *,
    step: int,
    tokens: int,
    score: ValidationLoss | None = None,
    final: bool = False,
    ledger: tuple[str, str] | None = None,
) -> tuple[Path, Manifest]:
    """Let `write` fill a directory and publish it; when this returns, the checkpoint survives a power cut.

    Raises StorageError where the disk is full or fails; what was there before is then still there.
    """
    stage = parent / f"{TEMPORARY}{checkpoint_name(step)}-{os.getpid()}"
    target = parent / checkpoint_name(step)
    try:
        stage.mkdir()
        write(stage)
        manifest = write_manifest(stage, step=step, tokens=tokens, score=score, final=final, ledger=ledger)
        _publish(stage, target)
    except OSError as error:
        shutil.rmtree(stage, ignore_errors=True)
        raise storage_error(error, target) from error
    except IntegrityError as error:  # what was written a moment ago does not read back
        shutil.rmtree(stage, ignore_errors=True)
        raise StorageError(f"cannot write {target}: {error}; check the disk") from error
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    return target, manifest


def _publish(stage: Path, target: Path) -> None:
    """Rename into place and sync the parent."""
    old = target.with_name(target.name + ".old")
    replaces = exists(target)
    if replaces:
        if exists(old):
            discard(old)
        os.rename(target, old)
    try:
        os.rename(stage, target)
    except OSError:
        if replaces:
            with suppress(OSError):
                os.rename(old, target)
        raise
    sync_directory(target.parent)
    if replaces:
        discard(old)


def discard(folder: Path) -> None:
    """Delete a directory so that nobody ever sees half of it: rename first, then delete."""
    doomed = folder.with_name(f"{TEMPORARY}del-{folder.name}-{os.getpid()}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clean(parent: Path) -> list[str]:
    """Finish what a dead writer began: delete its litter, end its replacement. Only the owner of the run may.

    Returns the names that were deleted or renamed.
    """
    litter = list_folder(parent, f"{TEMPORARY}*")
    for path in litter:
        if _is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    names = [path.name for path in litter]
    for old in list_folder(parent, "step-*.old"):
        names.append(old.name)
        new = old.with_name(old.name.removesuffix(".old"))
        if exists(new):
            discard(old)
        else:
            os.rename(old, new)
    return names


def _is_own_folder(path: Path) -> bool:
    """Whether it is a directory and no link to one. Raises OSError."""
    return is_folder(path) and not path.is_symlink()


def read_pointer(directory: Path, name: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, if it is there. Raises OSError where that cannot be seen."""
    try:
        folder = directory / (directory / name).read_text().strip()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return folder if folder.parent == directory and step_of(folder) is not None and is_folder(folder) else None


def free_bytes(folder: Path) -> int:
    """Bytes that a process without privileges can still write."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def needed_bytes(expected: int) -> int:
    """Free space that a save of `expected` bytes asks for."""
    return int(expected * _HEADROOM)
