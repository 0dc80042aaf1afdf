"""The ledger `events.jsonl`: decisions and events, written and synced before they take effect.

A run has two kinds of state. A restore rewinds weights, moments and the clock. It does not rewind the decisions of
people and guards: they are in the ledger, and `replay` applies them at every start. The records form a hash chain, so
that a lost or altered line is found.
"""

import copy
import functools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from hornbook.errors import IntegrityError, StorageError, quoted
from hornbook.files.ballast import release, with_room
from hornbook.files.durable import write_atomic
from hornbook.files.filesystem import exists
from hornbook.files.journal import Appender, read_records, verify_chain
from hornbook.files.run_directory import RunDir, StateRecord, checkpoint_name
from hornbook.files.run_lock import process_identity
from hornbook.files.secrets import hide_secrets
from hornbook.run.ledger.decisions import Decision, decisions_of, fold_named
from hornbook.run.ledger.interventions import Intervention
from hornbook.run.ledger.training_length import Cut
from hornbook.run.ledger.uptime import Uptime

LENGTH_SETTINGS = ("train.tokens", "train.epochs")
"""A change of one of these on resume sets the length anew, and cancels earlier cuts."""


class Position(Protocol):
    """A position in the run."""

    @property
    def step(self) -> int: ...
    @property
    def tokens(self) -> int: ...


@dataclass(frozen=True)
class At:
    """A position as plain numbers."""

    step: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Interval:
    """Steps between saves that were chosen after a step."""

    step: int
    every: int


@dataclass
class Monotone:
    """The state that no restore rewinds, replayed from the ledger."""

    attempt: int = 0
    """Number of starts so far."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> newest value of each setting changed since the start."""
    skipped_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Intervals [from, to) of global samples that are never read again."""
    init_from: dict[str, Any] | None = None
    """The record of the initial checkpoint (`InitFrom.record`); None: initial values."""
    recipe: dict[str, Any] | None = None
    """The complete recipe in force; None in runs of versions that did not record it."""
    recipe_attempt: int = 0
    """The attempt that began with it."""
    saved_manifests: dict[int, set[str | None]] = field(default_factory=dict)
    """Step -> digests of the manifests saved at it; None for a save of a version that did not record it."""
    slowest_save: float = 0.0
    """Seconds of the slowest save."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """Extent of metrics.jsonl at each save (`Appender.extent`), and its step."""
    chain: dict[str, int] = field(default_factory=dict)
    """`sha` of every record, and its number."""
    cuts: list[Cut] = field(default_factory=list)
    """Where the run was shortened, in the order of decision."""
    fewer_rows: list[tuple[int, int]] = field(default_factory=list)
    """(tokens consumed, rows) from which on microbatches were smaller, since memory ran out."""
    uptime: Uptime = field(default_factory=Uptime)
    """What the run has trained, and how often it failed."""
    save_intervals: list[Interval] = field(default_factory=list)
    """Steps between saves, with `checkpoint.every = "auto"`, in the order of decision."""
    interventions: list[Intervention] = field(default_factory=list)
    """Settings that were changed while the run trained, in the order of decision."""
    interventions_before: list[Intervention] = field(default_factory=list)
    """The same before the newest record that added or undid some."""
    answered: set[str] = field(default_factory=set)
    """Files of the requests that made them."""
    recipe_before: str = ""
    """Digest of recipe.toml before the newest of them; "" after a start that wrote it."""

    decisions: list[Decision] = field(default_factory=list)
    """What the guard did beyond single steps."""
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    """(steps done from which on checkpoints were left behind, records before it) of each time the run went back."""
    paused: bool = False
    """Whether the guard paused the run, and nobody has resumed it."""
    named: Counter[int] = field(default_factory=Counter)
    """Rank -> how often computing again has named it alone, and nothing was done about it."""

    @property
    def first(self) -> str:
        """`sha` of the first record: the identity of the ledger and its run."""
        return next(iter(self.chain), "")


def replay(records: Iterable[dict[str, Any]]) -> Monotone:
    """Fold the ledger's records, in order, into the monotone state."""
    state = Monotone()
    for record in records:
        state = fold(state, record)
    return state


def fold(state: Monotone, record: dict[str, Any]) -> Monotone:
    """The monotone state after one more record; the one before is used up."""
    if record.get("kind") in ("origin", "start"):  # drop what a start that died before left behind
        state = Monotone(attempt=state.attempt, chain=state.chain)
    if "sha" in record:
        state.chain[record["sha"]] = len(state.chain)
    state.attempt = max(state.attempt, record["attempt"])
    state.uptime = state.uptime.after(record)
    if record.get("kind") == "save":
        state.saved_manifests.setdefault(record["step"], set()).add(record.get("manifest"))
        state.slowest_save = max(state.slowest_save, record.get("seconds", 0.0))
        if "metrics" in record:
            state.metrics.append({**record["metrics"], "step": record["step"]})
    if record.get("kind") == "checkpoint_damaged":  # it was set aside, and an older one is used
        names = {checkpoint_name(step): step for step in state.saved_manifests}
        state.saved_manifests.pop(names.get(Path(record["path"]).name, -1), None)
    for change in record.get("changes", ()):
        state.settings.pop(change["key"], None)
        if change["key"] == "train.micro_batch":
            state.fewer_rows.clear()
        if change["key"] in LENGTH_SETTINGS:
            state.cuts.clear()
        if not change.get("gone"):
            state.settings[change["key"]] = change["new"]
    state.skipped_ranges += [(first, end) for first, end in record.get("windows", ())]
    if record.get("kind") == "shorten":
        state.cuts.append(Cut(record["tokens"], record["length"]))
    if record.get("kind") == "micro_batch":
        state.fewer_rows.append((record["tokens"], record["rows"]))
    if record.get("origin"):
        state.init_from = record["origin"]
    _fold_settings(state, record)
    _fold_decisions(state, record)
    fold_named(state.named, record)
    return state


def _fold_settings(state: Monotone, record: dict[str, Any]) -> None:
    if "recipe" in record:
        state.recipe, state.recipe_attempt = record["recipe"], record["attempt"]
    if record.get("ends_interventions"):
        state.interventions.clear()
    if record.get("kind") == "intervention":
        state.interventions_before = list(state.interventions)
        state.interventions.append(Intervention.from_record(record))
        state.answered.add(record.get("file", ""))
        state.recipe_before = record.get("recipe_before", "")
    if record.get("kind") == "save_interval":
        state.save_intervals.append(Interval(record["step"], record["every"]))


def _fold_decisions(state: Monotone, record: dict[str, Any]) -> None:
    """What the guard decided. Someone who resumes a run that it paused gives it a new budget."""
    if record.get("kind") in ("pause", "resume"):
        if state.paused and record["kind"] == "resume":
            state.decisions.clear()
        state.paused = record["kind"] == "pause"
    if record.get("kind") != "rollback":
        return
    state.decisions += decisions_of(record)
    behind = record["effective_step"]
    state.rollbacks.append((behind, state.chain.get(record.get("sha", ""), len(state.chain))))
    state.saved_manifests = {step: kept for step, kept in state.saved_manifests.items() if step <= behind}
    state.attempt = max(state.attempt, record["attempt"] + 1)  # the attempt that follows within the same process
    state.interventions_before = list(state.interventions)
    if record.get("undo"):
        state.interventions = [each for each in state.interventions if each.step < behind]
    if record.get("intervention"):
        state.interventions.append(Intervention.from_record(record["intervention"]))
    state.recipe_before = record.get("recipe_before", state.recipe_before)


def read_past(run: RunDir) -> Monotone:
    """The monotone state that the ledger of a run holds; IntegrityError where a line of it is damaged."""
    return replay(read_records(run.events))


def check_ledger(run: RunDir) -> int:
    """Number of records in the ledger of a run; IntegrityError with the remedy where it is damaged."""
    try:
        return verify_chain(run.events)
    except IntegrityError as error:
        raise IntegrityError(f"{error}. {remedy(run)}") from error


def remedy(run: RunDir) -> str:
    """The remedy for a ledger that is damaged, cut or gone."""
    return (
        f"Put back a copy of {run.events.name}: it alone records skipped data and changed settings. Without one, "
        f"`hornbook train {quoted(run.recipe)} --from {quoted(run.path)} --out NEW` starts a new run from the weights"
    )


class Ledger:
    """Writes the records of one attempt. Opening cuts a torn last line and checks the chain."""

    def __init__(self, run: RunDir, *, silent: bool = False) -> None:
        """`silent`: for ranks other than 0; the file is read, never written."""
        self._run, self._appender = run, None if silent else Appender(run.events, chained=True)
        self.torn = 0 if self._appender is None else self._appender.torn
        """Bytes of an unfinished last line that opening cut."""
        check_ledger(run)
        self.past = read_past(run)
        self.now = copy.deepcopy(self.past)
        """The same with the records of this attempt."""
        self.attempt = self.past.attempt + 1
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        """Called with every record once it is on disk."""
        self._first = ""
        self._last: Position = At()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None and not issubclass(kind, StorageError):
            self.note("fail", self._last, error=kind.__name__, text=str(error))
        if self._appender is not None:
            self._appender.close()

    def silent(self) -> Self:
        """The same past and attempt for a rank other than 0: its notes are dropped, rank 0 writes them."""
        other = copy.copy(self)
        other._appender, other.now = None, copy.deepcopy(self.now)
        return other

    def begin_attempt(self) -> None:
        """The next attempt begins within this process; its past is all that was noted so far."""
        self.past, self.now = self.now, copy.deepcopy(self.now)
        self.attempt += 1

    @property
    def ends(self) -> tuple[str, str] | None:
        """`sha` of the first and the newest record; None before the first, and on ranks other than 0."""
        head = "" if self._appender is None else self._appender.head
        return (self.past.first or self._first or head, head) if head else None

    def note(self, kind: str, at: Position, **fields: Any) -> None:
        """Append one record and return when it is on disk; ranks other than 0 only remember it.

        What looks like a secret in texts (reasons that people give, errors, the command) is hidden.
        """
        record = {"kind": kind, "attempt": self.attempt, "step": at.step, "tokens": at.tokens, "time": time.time()}
        record |= {key: _hidden(value) for key, value in fields.items()}
        if self._appender is None:
            self.now = fold(self.now, record)
            return
        self._run.check_owner()
        self._appender.check()
        with_room(self._run.ballast, functools.partial(self._appender.append, record))
        self._appender.sync()
        self._first = self._first or self._appender.head
        self._last = At(at.step, at.tokens)
        self.now = fold(self.now, record | {"sha": self._appender.head})
        for listen in self.listeners:
            listen(record)


def _hidden(value: Any) -> Any:
    """A text, or the texts of a list, without secrets; anything else as it is."""
    if isinstance(value, list):
        return [hide_secrets(each) if isinstance(each, str) else each for each in value]
    return hide_secrets(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class RunWriter:
    """The files of a run, which rank 0 alone writes: on every other rank each call does nothing."""

    run: RunDir
    ledger: Ledger
    is_rank0: bool = True
    owner: dict[str, Any] = field(default_factory=lambda: process_identity(os.getpid()))
    """The process that a person started; state.json names it."""
    ballast: int = 0
    """Bytes of `checkpoint.ballast`."""

    @property
    def is_disk_full(self) -> bool:
        """Whether the ballast was given up for what this attempt writes."""
        return self.ballast > 0 and self.is_rank0 and not exists(self.run.ballast)

    def drop_ballast(self) -> None:
        """Free the space that a finished run no longer needs."""
        if self.ballast and self.is_rank0:
            release(self.run.ballast)

    def on_rank(self, rank: int) -> Self:
        """The writer of one rank of several."""
        return self if rank == 0 else replace(self, ledger=self.ledger.silent(), is_rank0=False)

    def write(self, path: Path, text: str) -> None:
        """Replace a small file atomically. Raises StorageError."""
        if self.is_rank0:
            with_room(self.run.ballast, functools.partial(write_atomic, path, text))

    def write_json(self, path: Path, value: Any) -> None:
        """Replace a small JSON file atomically. Raises StorageError."""
        self.write(path, json.dumps(value, indent=2) + "\n")

    def write_state(self, record: StateRecord) -> None:
        """Replace state.json. Raises StorageError."""
        if self.is_rank0:
            self.run.write_state(record)
