"""The ledger `events.jsonl`: what was decided and done, written and synced before it takes effect.

A run has two kinds of state. Weights, moments and the clock are rewound by a restore. What people and guards
decided is not: it stands in the ledger, and `replay` gives it back at every start. The records form a hash
chain, so that a lost or altered line shows.
"""

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from hornbook.errors import IntegrityError, StorageError
from hornbook.files.journal import Appender, read_records, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.run.horizon import Cut

Listener = Callable[[dict[str, Any]], None]
LENGTH_SETTINGS = ("train.tokens", "train.epochs")
"""Who changes one of these on resume says anew how long the run is, and takes back what shortened it."""


class Position(Protocol):
    """Where the run is."""

    @property
    def step(self) -> int: ...
    @property
    def tokens(self) -> int: ...


@dataclass(frozen=True)
class At:
    """A position that is only known as numbers."""

    step: int = 0
    tokens: int = 0


@dataclass
class Monotone:
    """State that only grows, replayed from the ledger over every restore."""

    attempt: int = 0
    """Starts of the run so far."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value changed since the start (the newest)."""
    windows: list[tuple[int, int]] = field(default_factory=list)
    """Global sample intervals [from, to) that are never taken again."""
    origin: dict[str, Any] | None = None
    """What the run began from, where that was a checkpoint."""
    saved: bool = False
    """Whether a checkpoint was ever committed."""
    recipe: dict[str, Any] | None = None
    """The recipe in force, complete; None in runs of versions that did not note it."""
    saves: dict[int, set[str | None]] = field(default_factory=dict)
    """Step -> digests of the manifests of its saves; None for one of a version that did not note it."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """What metrics.jsonl held at each save (`Appender.extent`), and its step."""
    chain: dict[str, None] = field(default_factory=dict)
    """`sha` of every record, in order."""
    cuts: list[Cut] = field(default_factory=list)
    """Where the run was shortened, in the order in which it was decided."""

    @property
    def first(self) -> str:
        """`sha` of the first record: the name of this ledger, and of its run."""
        return next(iter(self.chain), "")


def replay(records: Iterable[dict[str, Any]]) -> Monotone:
    """Fold the ledger's records, in order, into the monotone state."""
    state = Monotone()
    for record in records:
        if record.get("kind") in ("origin", "start"):  # what a start that died before it left behind does not count
            state = Monotone(attempt=state.attempt, chain=state.chain)
        if "sha" in record:
            state.chain[record["sha"]] = None
        state.attempt = max(state.attempt, record["attempt"])
        if record.get("kind") == "save":
            state.saved = True
            state.saves.setdefault(record["step"], set()).add(record.get("manifest"))
            if "metrics" in record:
                state.metrics.append({**record["metrics"], "step": record["step"]})
        state.recipe = record.get("recipe", state.recipe)
        for change in record.get("changes", ()):
            state.settings.pop(change["key"], None)
            if change["key"] in LENGTH_SETTINGS:
                state.cuts.clear()
            if not change.get("gone"):
                state.settings[change["key"]] = change["new"]
        state.windows += [(first, end) for first, end in record.get("windows", ())]
        if record.get("kind") == "shorten":
            state.cuts.append(Cut(record["tokens"], record["length"]))
        if record.get("origin"):
            state.origin = record["origin"]
    return state


def check_ledger(run: RunDir) -> int:
    """Number of records in the ledger of a run; IntegrityError that names the remedy where it is damaged."""
    try:
        return verify_chain(run.events)
    except IntegrityError as error:
        raise IntegrityError(f"{error}. {remedy(run)}") from error


def remedy(run: RunDir) -> str:
    """What to do about a ledger that is damaged, cut or gone."""
    return (
        f"Put back a copy of {run.events.name}: skipped data and changed settings stand there alone. Without one, "
        f"`hornbook train {run.recipe} --from {run.path} --out NEW` starts a new run from the weights"
    )


class SilentAppender:
    """In the place of an `Appender` on a rank that does not lead: it takes records and writes none."""

    torn = 0
    head = ""

    @property
    def extent(self) -> dict[str, Any]:
        """It has no file."""
        return {}

    def append(self, record: Mapping[str, Any]) -> None:
        """Drop a record."""

    def check(self) -> None:
        """There is nothing to check."""

    def sync(self) -> None:
        """There is nothing to sync."""

    def close(self) -> None:
        """There is nothing to close."""


class Ledger:
    """Writer of one attempt's records; opens by cutting a torn tail and checking the chain."""

    def __init__(self, run: RunDir, listeners: Iterable[Listener] = (), *, silent: bool = False) -> None:
        """`silent`: for a rank that does not lead; the file is read, and not written."""
        self._appender = SilentAppender() if silent else Appender(run.events, chained=True)
        check_ledger(run)
        self.past = replay(record for record, _ in read_records(run.events))
        self.attempt = self.past.attempt + 1
        self.listeners: list[Listener] = list(listeners)
        self._first = ""
        self._last: Position = At()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None and not issubclass(kind, StorageError):
            self.note("fail", self._last, error=kind.__name__, text=str(error))
        self._appender.close()

    def silent(self) -> Self:
        """The same past and attempt for a rank that does not lead: what it notes is written by the one that does."""
        other = copy.copy(self)
        other._appender, other.listeners = SilentAppender(), []
        return other

    @property
    def ends(self) -> tuple[str, str] | None:
        """`sha` of its first and its newest record; None on a rank that does not lead, and before the first record."""
        head = self._appender.head
        return (self.past.first or self._first or head, head) if head else None

    @property
    def torn(self) -> int:
        """Bytes of an unfinished last line that were cut on opening."""
        return self._appender.torn

    def note(self, kind: str, at: Position, **fields: Any) -> None:
        """Append one record and return when it is on disk."""
        record = {"kind": kind, "attempt": self.attempt, "step": at.step, "tokens": at.tokens, "time": time.time()}
        record |= fields
        self._appender.check()
        self._appender.append(record)
        self._appender.sync()
        self._first = self._first or self._appender.head
        self._last = At(at.step, at.tokens)
        for listen in self.listeners:
            listen(record)
