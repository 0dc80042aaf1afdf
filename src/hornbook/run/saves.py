"""When the loop saves: checkpoints, what the ledger hears of them, and what a full disk does.

A scheduled save that fails is noted and tried again at the next one; the older checkpoints are untouched. The
second failure in a row, or one at the end or on a stop, ends the run with exit code 7.
"""

import time
from pathlib import Path

from hornbook.errors import StorageError
from hornbook.run.checkpoint import Checkpoints
from hornbook.run.ledger import Ledger
from hornbook.run.observers import Observers
from hornbook.run.state import State


class Saves:
    """Commits checkpoints and says so."""

    def __init__(self, checkpoints: Checkpoints, ledger: Ledger, observers: Observers) -> None:
        self._checkpoints, self._ledger, self._observers = checkpoints, ledger, observers
        self._held: int | None = None
        self._failures = 0

    def restore(self, state: State) -> Path | None:
        """Read the newest checkpoint that verifies into the state; None if there is none."""
        folder = self._checkpoints.restore(state)
        if folder is not None:
            self._held = state.step
        return folder

    def save(self, state: State, *, final: bool = False) -> None:
        """Save unless this step is saved already; StorageError if it cannot be written."""
        if self._held == state.step:
            return
        started = time.monotonic()
        self._observers.metrics.sync()  # a checkpoint is never newer than the record of its steps
        folder = self._checkpoints.save(state, final=final, score=self._observers.score(state.step))
        self._held, self._failures = state.step, 0
        self._ledger.note("save", state, checkpoint=folder.name, final=final, seconds=time.monotonic() - started)
        self.pass_on_notes(state)
        for tell in self._observers.notes:
            tell(f"saved {folder.name}")

    def try_save(self, state: State) -> None:
        """A scheduled save: the first failure is noted and the run goes on."""
        try:
            self.save(state)
        except StorageError as error:
            self._failures += 1
            if self._failures > 1:
                raise
            self._ledger.note("warning", state, text=f"the save failed: {error}")
            for tell in self._observers.notes:
                tell(f"could not save, older checkpoints are untouched, training goes on: {error}")

    def pass_on_notes(self, state: State) -> None:
        """Write what happened to checkpoints (damage, litter, removals) into the ledger."""
        for note in self._checkpoints.take_notes():
            self._ledger.note(note.kind, state, path=note.path, text=note.text)
            for tell in self._observers.notes:
                tell(f"{note.path}: {note.text}")
