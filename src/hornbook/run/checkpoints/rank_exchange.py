"""How ranks coordinate checkpoints: by small values in the store, never by a collective.

A save is written while training goes on, so it must not take part in the collectives of training. Rank 0 creates the
files, every rank fills in its part, rank 0 publishes; each waits for keys of the store.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook import errors
from hornbook.errors import HornbookError, RankLostError
from hornbook.files.durable import storage_errors

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

    from hornbook.run.checkpoints.snapshot import Snapshot

POLL_SECONDS = 0.02


class Exchange:
    """Coordinates the ranks of a run for its checkpoints. All make the same calls in the same order."""

    def __init__(self, store: "Store | None" = None, rank: int = 0, size: int = 1) -> None:
        assert size == 1 or store is not None
        self.rank, self.size = rank, size
        self.is_rank0 = rank == 0
        """Whether this rank creates, publishes and deletes checkpoints."""
        self._store = store
        self._count = 0
        self._awaited: int | None = None
        """The rank that a thread waits for."""
        self._leaving = threading.Event()

    def cancel(self) -> None:
        """End every wait for another rank, in any thread, with a RankLostError that names the rank."""
        self._leaving.set()

    def next_key(self) -> str:
        """A new key, the same on every rank."""
        self._count += 1
        return f"checkpoint/{self._count}"

    def set(self, key: str, value: Any) -> None:
        """Set a key of the store to a value that JSON can hold, for all ranks."""
        if self._store is not None:
            self._store.set(key, json.dumps(value))

    def get(self, rank: int, *keys: str) -> tuple[str, Any]:
        """The first of the keys that a rank has set, and its value; waits for one. Raises RankLostError on `cancel`."""
        assert self._store is not None
        self._awaited = rank
        while True:
            for key in keys:
                if self._store.check([key]):
                    found = json.loads(self._store.get(key))
                    self._awaited = None
                    return key, found
            if self._leaving.wait(POLL_SECONDS):
                self.refuse_silence()

    def refuse_silence(self) -> None:
        """Raise RankLostError where a thread waits for another rank, or for the store behind a link that is down."""
        if self._awaited is not None:
            raise RankLostError(
                f"rank {self._awaited} did not do its part of a checkpoint: it died, hangs or cannot be reached. Start "
                "all ranks again: they go on from the newest checkpoint"
            )

    def decide(self, action: Callable[[], str]) -> str:
        """Run `action` on rank 0; every rank returns its answer or raises its HornbookError."""
        key = self.next_key()
        if not self.is_rank0:
            _, (kind, text) = self.get(0, key)
            if kind:
                raise getattr(errors, kind)(text)
            return text
        try:
            answer = action()
        except HornbookError as error:
            self.set(key, (type(error).__name__, str(error)))
            raise
        self.set(key, ("", answer))
        return answer


class SharedSave:
    """One save by all ranks, in one round or, where the disk was full and has room now, in several."""

    def __init__(self, exchange: Exchange, state: "Snapshot") -> None:
        self._exchange, self._state = exchange, state
        self._rounds = 0
        self._key = exchange.next_key()
        self._end = f"{self._key}/end"

    def _stage(self) -> str:
        return f"{self._key}/stage-{self._rounds}"

    def _done(self, rank: int) -> str:
        return f"{self._key}/rank-{rank}-{self._rounds}"

    def write(self, stage: Path) -> None:
        """On rank 0: fill an empty folder together with the other ranks. Raises OSError, StorageError.

        When it returns or raises, no rank writes into the folder any more.
        """
        self._state.create(stage)
        self._rounds += 1
        self._exchange.set(self._stage(), stage.name)
        try:
            self._state.fill(stage)
        finally:
            found = [self._exchange.get(rank, self._done(rank))[1] for rank in range(1, self._exchange.size)]
        for rank, (problem, number) in enumerate(found, 1):
            if problem:
                raise errors.StorageError(f"rank {rank}: {problem}") from OSError(number, problem)

    def end(self, error: BaseException | None = None) -> None:
        """On rank 0: let the others return, or raise `error`."""
        kind = type(error).__name__ if isinstance(error, HornbookError) else "StorageError"
        self._exchange.set(self._end, error and (kind, str(error) or type(error).__name__))

    def follow(self, parent: Path) -> None:
        """On the other ranks: fill in the part of this rank, and wait for the end. Raises the error of rank 0."""
        while True:
            self._rounds += 1
            key, value = self._exchange.get(0, self._end, self._stage())
            if key == self._end:
                break
            self._fill(parent / value)
        if value:
            kind, text = value
            raise getattr(errors, kind)(text)

    def _fill(self, stage: Path) -> None:
        problem, number = "it ended", 0
        try:
            with storage_errors(stage):
                self._state.fill(stage)
            problem = ""
        except HornbookError as error:
            problem, number = str(error), getattr(error.__cause__, "errno", 0)
        finally:
            self._exchange.set(self._done(self._exchange.rank), (problem, number))
