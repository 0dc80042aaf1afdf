"""Exit codes, and the errors that end a process with them.

An error that a person can cause or fix is a `HornbookError`: its text says what is wrong and what to do, and its class
has the exit code. Any other exception is a defect (exit code 1).
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of all commands. A scheduler should start the same command again on 7 (with space freed), 8 and 75."""

    DONE = 0
    DEFECT = 1
    USAGE = 2
    INTEGRITY = 3
    DOES_NOT_FIT = 4
    DIVERGED = 5
    IN_USE = 6
    STORAGE = 7
    HARDWARE = 8
    RETRIES_SPENT = 9
    RESUMABLE = 75
    INTERRUPTED = 130


EXIT_MEANING = {
    Exit.DONE: "done",
    Exit.DEFECT: "unexpected error",
    Exit.USAGE: "wrong usage or configuration, or an incompatible resume",
    Exit.INTEGRITY: "damaged or changed data or checkpoint, or a failed comparison",
    Exit.DOES_NOT_FIT: "does not fit into memory",
    Exit.DIVERGED: "training diverged",
    Exit.IN_USE: "run directory in use",
    Exit.STORAGE: "storage full or unwritable",
    Exit.HARDWARE: "hardware suspected",
    Exit.RETRIES_SPENT: "no restarts left (guard.max_restarts)",
    Exit.RESUMABLE: "saved and stopped by a signal or a request: start the command again",
    Exit.INTERRUPTED: "interrupted",
}


class HornbookError(Exception):
    """An error whose text tells the user what is wrong, where, and the remedy."""

    exit_code = Exit.DEFECT


class UsageError(HornbookError, ValueError):
    """The request cannot be carried out as written (configuration, arguments, incompatible resume)."""

    exit_code = Exit.USAGE


class IntegrityError(HornbookError):
    """Data or a checkpoint is damaged, incomplete or not what its manifest says."""

    exit_code = Exit.INTEGRITY


class DoesNotFitError(HornbookError):
    """The work needs more memory than there is."""

    exit_code = Exit.DOES_NOT_FIT


class DivergedError(HornbookError):
    """Training diverged, and the guard's budget of skipped steps is spent."""

    exit_code = Exit.DIVERGED


class InUseError(HornbookError):
    """Another process owns the run directory."""

    exit_code = Exit.IN_USE


class RankLostError(HornbookError):
    """Another rank of the run ended; when all are started again, they go on from the newest checkpoint."""

    exit_code = Exit.RESUMABLE


class RetriesSpentError(HornbookError):
    """The run was restarted as often as allowed without reaching another checkpoint."""

    exit_code = Exit.RETRIES_SPENT


class StorageError(HornbookError):
    """The disk is full, read-only or failing."""

    exit_code = Exit.STORAGE
