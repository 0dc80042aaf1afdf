"""The checkpoints of a run: save, restore the newest that verifies, delete old ones.

A checkpoint verifies if every byte is as its manifest says. Where the newest does not, the next older one is used and
the caller gets a note; where none does, that is an error: training never starts from scratch by itself.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.errors import IntegrityError, StorageError
from hornbook.files.ballast import is_full, release
from hornbook.files.durable import clean_folder, discard, storage_errors, write_atomic
from hornbook.files.filesystem import exists, is_folder, list_folder
from hornbook.files.run_directory import checkpoint_name
from hornbook.run.checkpoints.bound import LEFT_BEHIND
from hornbook.run.checkpoints.commit import (
    BEST,
    LATEST,
    commit,
    list_checkpoints,
    newest_step,
    read_pointer,
    step_of,
)
from hornbook.run.checkpoints.find_checkpoint import all_damaged, examine, newest_verified
from hornbook.run.checkpoints.manifest import Manifest, ValidationLoss, read_manifest, verify_folder
from hornbook.run.checkpoints.rank_exchange import Exchange, SharedSave
from hornbook.run.ledger.step_report import is_due
from hornbook.settings.training import CheckpointConfig

if TYPE_CHECKING:
    from hornbook.run.checkpoints.snapshot import Snapshot
    from hornbook.run.checkpoints.state import State

HEADROOM = 1.2
"""Free space that a save asks for, as a multiple of its size."""
_NEEDED = {
    "*.safetensors": "the weights",
    "trainer/optimizer*.safetensors": "the optimizer's moments",
    "trainer/state.json": "the trainer's state",
}


@dataclass(frozen=True)
class Note:
    """An event of a checkpoint, for the ledger."""

    kind: str
    """`checkpoint_damaged`, `checkpoint_abandoned`, `checkpoint_removed`, `litter_removed`, `ballast_released` or
    `tidying_failed`."""
    path: str
    text: str


class CheckpointStore:
    """The directory `checkpoints` of a run, for the process that holds the run's lock, or for its ranks."""

    def __init__(
        self,
        directory: Path,
        config: CheckpointConfig,
        exchange: Exchange | None = None,
        why_foreign: Callable[[Manifest], str | None] = lambda _: None,
        check_owner: Callable[[], None] = lambda: None,
        back: int = 0,
        ballast: Path | None = None,
    ) -> None:
        """`why_foreign`: why an undamaged checkpoint is not one of this run; None: it is.

        `back`: steps that the run must be able to go back; 0: it does not go back.
        ballast: a file to delete where the disk is full and no older checkpoint makes room; None: there is none.
        `check_owner` raises where another process has taken the run over, whose checkpoints must stay as they are.
        """
        self._directory = directory
        self._config = config
        self._exchange = exchange or Exchange()
        self._why_foreign, self._check_owner, self._back = why_foreign, check_owner, back
        self._ballast = ballast
        self.digests: dict[str, str] = {}
        """Of the newest save, for the ledger: of its `manifest`, and of its `tensors`; set on rank 0."""
        self._verified: Path | None = None
        self._notes: list[Note] = []

    def take_notes(self) -> list[Note]:
        """Return and forget the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def save(
        self,
        state: "Snapshot",
        final: bool = False,
        score: ValidationLoss | None = None,
        ledger: tuple[str, str] | None = None,
    ) -> Path:
        """Commit a checkpoint of the state; when this returns it survives a power cut. Every rank calls it.

        score: measured after this very step; the lowest over the same rows becomes `best`. ledger: identity of the run
        (`Ledger.ends`). Raises StorageError (disk full, failing, read-only) on every rank: older checkpoints are then
        untouched, and training may go on and try again. Raises RankLostError if it still waits after `Exchange.cancel`.
        """
        shared = SharedSave(self._exchange, state)
        if not self._exchange.is_rank0:
            shared.follow(self._directory)
            return self._directory / checkpoint_name(state.step)
        try:
            folder = self._commit(shared, Manifest(state.step, state.tokens, score, final, ledger=ledger))
        except BaseException as error:
            shared.end(error)
            raise
        shared.end()
        return folder

    def _commit(self, shared: SharedSave, manifest: Manifest) -> Path:
        def write(stage: Path) -> None:
            shared.write(stage)
            self._check_owner()  # it may have taken long

        self._check_owner()
        with storage_errors(self._directory):
            self._directory.mkdir(exist_ok=True)  # without parents: a run that was moved is not made anew
            self._clean()
            self._make_room()
        try:
            folder, manifest = commit(self._directory, write, manifest)
        except StorageError as error:
            if not (is_full(error) and self._give_up_ballast()):
                raise
            folder, manifest = commit(self._directory, write, manifest)
        self._verified, self.digests = folder, {"manifest": manifest.digest, "tensors": manifest.tensors}
        try:
            self._tidy(folder, manifest.score)
        except (OSError, StorageError) as error:
            self._notes.append(Note("tidying_failed", str(folder), f"saved, but: {error}"))
        return folder

    def _tidy(self, folder: Path, score: ValidationLoss | None) -> None:
        """Move the pointers and delete checkpoints that are not kept, after the save itself."""
        write_atomic(self._directory / LATEST, folder.name + "\n")
        if score is not None and self._config.best and self._beats_best(score, folder):
            write_atomic(self._directory / BEST, folder.name + "\n")
        self._remove(self._surplus(self._config.keep))

    @property
    def newest_step(self) -> int:
        """Step of the newest checkpoint by its name, whole or not; -1 where there is none."""
        return newest_step(self._directory)

    def restore(self, state: "State") -> Path | None:
        """Read the newest checkpoint that verifies; None where there is none at all.

        Every rank calls it and reads the same one. Directories that do not verify are set aside as `damaged-step-N`
        and noted; of those that a rollback left behind the newest is kept. Raises IntegrityError naming every one if
        all are damaged.
        """
        damaged: list[tuple[Path, str]] = []
        name = self._exchange.decide(lambda: self._choose(damaged))
        if not name:
            return None
        folder = self._directory / name
        state.read(folder)
        self._verified = folder
        if self._exchange.is_rank0:
            self._set_aside(damaged)
        return folder

    def newest_up_to(self, step: int) -> str:
        """Name of the newest checkpoint of at most `step` steps that verifies; "" where there is none. All ranks."""

        def find() -> str:
            there = examine(self._directory, self.verify, self._why_foreign, step)
            return next((folder.name for folder, problem, _ in there if not problem), "")

        return self._exchange.decide(find)

    def _choose(self, damaged: list[tuple[Path, str]]) -> str:
        """Name of the checkpoint to use, or ""; adds newer ones, with their problem, to `damaged`."""
        if not is_folder(self._directory):
            return ""
        self._clean()
        for folder, problem, _ in examine(self._directory, self.verify, self._why_foreign):
            if not problem:
                return folder.name
            damaged.append((folder, problem))
        if damaged:
            raise IntegrityError(all_damaged(damaged))
        return ""

    def verify(self, path: Path) -> Manifest:
        """Check every byte against the manifest, and that all files to resume from are there; IntegrityError if not."""
        manifest = verify_folder(path)
        if step_of(path) not in (None, manifest.step):
            raise IntegrityError(f"{path}: its manifest is of step {manifest.step}")
        for pattern, what in _NEEDED.items():
            depth = pattern.count("/")
            if not any(fnmatch(name, pattern) and name.count("/") == depth for name in manifest.files):
                raise IntegrityError(f"{path}: {what} ({pattern}) are missing: a run cannot go on from it")
        return manifest

    def _clean(self) -> None:
        for name in clean_folder(self._directory, "step-*"):
            path = str(self._directory / name)
            self._notes.append(Note("litter_removed", path, "left by a save that was interrupted"))

    def _make_room(self) -> None:
        """Make sure that a save of the last one's size fits, if need be by deleting surplus checkpoints early."""
        newest = next(filter(None, map(_size, list_checkpoints(self._directory))), 0)
        needed, free = int(newest * HEADROOM), shutil.disk_usage(self._directory).free
        if free >= needed:
            return
        chosen: list[Path] = []
        for folder in reversed(self._surplus(1, scarce=True)):
            chosen.append(folder)
            free += _size(folder)
            if free >= needed:
                self._remove(chosen, "removed early: the disk is nearly full")
                return
        if self._give_up_ballast() and shutil.disk_usage(self._directory).free >= needed:
            return
        raise StorageError(
            f"cannot save in {self._directory}: a checkpoint needs {needed:,} bytes and "
            f"{shutil.disk_usage(self._directory).free:,} are free; free some space, or lower checkpoint.keep"
        )

    def _give_up_ballast(self) -> bool:
        """Free the space that is held for a full disk; whether there was any."""
        if self._ballast is None or not release(self._ballast):
            return False
        self._notes.append(Note("ballast_released", str(self._ballast), "deleted: the disk is full"))
        return True

    def _surplus(self, keep: int, *, scarce: bool = False) -> list[Path]:
        """Checkpoints that need not be kept, newest first; `keep`: number of newest ones to keep; scarce: no others."""
        if self._verified is None:
            self._verified = newest_verified(self._directory)
        best = read_pointer(self._directory, BEST) if self._config.best else None
        there = list_checkpoints(self._directory)
        kept = {self._verified, best, *there[:keep]}
        if not scarce:
            kept |= {*self._far_back(there)}
        rotating = [folder for folder in there if not is_due(step_of(folder) or 0, self._config.keep_every)]
        return [folder for folder in rotating if folder not in kept]

    def _far_back(self, there: list[Path]) -> list[Path]:
        """Of checkpoints, newest first: the newest that is far enough back, and the oldest of those that are not.

        The second is the first one day.
        """
        steps = [step_of(folder) or 0 for folder in there]
        near = sum(step > steps[0] - self._back for step in steps)
        return there[max(near - 1, 0) : near + 1] if self._back else []

    def _remove(self, folders: Iterable[Path], reason: str | None = None) -> None:
        for folder in folders:
            why = reason
            try:
                discard(folder)
            except OSError as error:
                why = f"could not be removed: {error.strerror}"
            if why:
                self._notes.append(Note("checkpoint_removed", str(folder), why))

    def _set_aside(self, damaged: list[tuple[Path, str]]) -> None:
        behind = [folder for folder, problem in damaged if problem.endswith(LEFT_BEHIND)]
        if behind:
            self._remove(list_folder(self._directory, "abandoned-step-*"), "the run went back once more")
        for folder, problem in damaged:
            word = "abandoned" if folder in behind else "damaged"
            text = f"{problem.removeprefix(f'{folder}: ')}; an older checkpoint is used"
            try:
                if folder in behind[1:]:
                    discard(folder)
                else:
                    os.rename(folder, _unused(folder.with_name(f"{word}-{folder.name}")))
            except OSError as error:
                text += f" (it could not be set aside: {error.strerror})"
            self._notes.append(Note(f"checkpoint_{word}", str(folder), text))

    def _beats_best(self, score: ValidationLoss, folder: Path) -> bool:
        """Whether the checkpoint becomes `best`: always, if the loss of the present best is of other rows."""
        best = read_pointer(self._directory, BEST)
        held = None
        if best is not None and best != folder:
            with contextlib.suppress(IntegrityError):
                held = read_manifest(best).score
        return score.beats(held)


def _size(folder: Path) -> int:
    """Bytes of a checkpoint; 0 where its manifest cannot be read."""
    try:
        return read_manifest(folder).total_bytes
    except IntegrityError:
        return 0


def _unused(path: Path) -> Path:
    """The path itself, else with the first free number appended."""
    numbered = (path.with_name(f"{path.name}.{i}") for i in range(2, 10_000))
    return path if not exists(path) else next(candidate for candidate in numbered if not exists(candidate))
