"""Exit codes, and the errors that end a process with them.

An error that a person can cause or fix is a `HornbookError`: its text says what is wrong and what to do, and its class
has the exit code. Any other exception is a defect (exit code 1).
"""

import shlex
from enum import IntEnum
from pathlib import Path


class Exit(IntEnum):
    """Exit codes of all commands. A scheduler should start the same command again on 7 (with space freed), 8 and 75."""

    meaning: str
    """For people; `hornbook --help` lists it."""

    def __new__(cls, code: int, meaning: str) -> "Exit":
        """A member is an integer that has a meaning."""
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    DONE = 0, "done"
    DEFECT = 1, "unexpected error"
    USAGE = 2, "wrong usage or configuration, or an incompatible resume"
    INTEGRITY = 3, "damaged or changed data or checkpoint, or a failed comparison"
    DOES_NOT_FIT = 4, "does not fit into memory"
    DIVERGED = 5, "training diverged"
    IN_USE = 6, "run directory in use"
    STORAGE = 7, "storage full or unwritable"
    HARDWARE = 8, "hardware suspected"
    RETRIES_SPENT = 9, "no restarts left (guard.max_restarts)"
    RESUMABLE = 75, "saved and stopped, or another rank was lost: start the command again"
    INTERRUPTED = 130, "interrupted"


class HornbookError(Exception):
    """An error whose text tells the user what is wrong, where, and the remedy. A subclass may name its exit code."""

    exit_code = Exit.DEFECT

    def __init_subclass__(cls, *, exit_code: Exit | None = None) -> None:
        cls.exit_code = exit_code or cls.exit_code


class UsageError(HornbookError, ValueError, exit_code=Exit.USAGE):
    """The request cannot be carried out as written (configuration, arguments, incompatible resume)."""


class IntegrityError(HornbookError, exit_code=Exit.INTEGRITY):
    """Data or a checkpoint is damaged, incomplete or not what its manifest says."""


class DoesNotFitError(HornbookError, exit_code=Exit.DOES_NOT_FIT):
    """The work needs more memory than there is."""


class DivergedError(HornbookError, exit_code=Exit.DIVERGED):
    """Training diverged, and the guard's budget of skipped steps is spent."""


class InUseError(HornbookError, exit_code=Exit.IN_USE):
    """Another process owns the run directory."""


class RankLostError(HornbookError, exit_code=Exit.RESUMABLE):
    """Another rank of the run ended; when all are started again, they go on from the newest checkpoint."""


class StoppedError(HornbookError, exit_code=Exit.RESUMABLE):
    """Somebody asked to stop; the same command goes on."""


class HardwareError(HornbookError, exit_code=Exit.HARDWARE):
    """A check of the machine failed, and the run cannot go on without the part that did."""


class LostDeviceError(HardwareError):
    """A GPU failed under the process; another process can go on from the newest checkpoint, there or elsewhere."""


class RetriesSpentError(HornbookError, exit_code=Exit.RETRIES_SPENT):
    """The run was restarted as often as allowed without reaching another checkpoint."""


class StorageError(HornbookError, exit_code=Exit.STORAGE):
    """The disk is full, read-only or failing."""


class SharedMemoryError(HornbookError, exit_code=Exit.STORAGE):
    """Memory that processes of this machine share (/dev/shm) is full; the run directory can be written."""


class TakenOverError(StorageError, exit_code=Exit.IN_USE):
    """Another process took the run directory over, and this one must write nothing more there."""


def planned(error: Exception) -> Exception:
    """The error, marked as one that a person asked for by a fault plan."""
    error.__dict__["planned"] = True
    return error


def is_planned(error: BaseException) -> bool:
    """Whether a fault plan raised it: no defect of ours."""
    return bool(getattr(error, "planned", False))


def quoted(path: Path | str) -> str:
    """A path as it is typed in a command that a message proposes."""
    return shlex.quote(str(path))
