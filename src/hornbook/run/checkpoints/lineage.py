"""The origins of weights, for `data where`, `data affected`, `verify`, forks, `--from` and imports.

Weights learned from the steps of their own run and from those of its origin: a run up to a step, which may have an
origin in turn. The ledger names the origin. Folders made from other models (export, import, grow) name theirs in
`lineage.json`, by name and first ledger record of a run and never by a path, because such folders are given away.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hornbook.errors import IntegrityError
from hornbook.files.durable import storage_errors
from hornbook.files.filesystem import is_file
from hornbook.files.journal import read_records
from hornbook.files.json_files import read_json, write_json
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.commit import step_of
from hornbook.run.ledger.ledger import read_past

FILE = "lineage.json"
MAX_ORIGINS = 100
"""Longest chain of origins that a folder may claim."""


@dataclass(frozen=True)
class Ancestor:
    """A run whose steps, up to one of them, contributed to some weights."""

    run: RunDir
    step: int


@dataclass(frozen=True)
class Lineage:
    """The origins of a run's initial weights."""

    ancestors: tuple[Ancestor, ...] = ()
    """The nearest first."""
    unknown: tuple[str, ...] = ()
    """Descriptions of origins that cannot be looked up; empty where all are ancestors."""

    def describe(self) -> str:
        """One line."""
        words = [f"{each.run.path}, step {each.step:,}" for each in self.ancestors]
        return "; ".join([*words, *self.unknown])


def describe_source(folder: Path) -> dict[str, Any]:
    """The record of a checkpoint or model folder: a run and a step, or the content of its lineage.json.

    It contains the earlier origins, so that it stays true when runs in between are deleted.
    """
    run = _run_of(folder)
    if run is not None:
        source: dict[str, Any] = {"run": _identity(run), "name": run.name, "step": step_of(folder) or 0}
        before = _origin(run)
        return source | ({"from": before} if before is not None else {})
    said = _checked(read_json(folder / FILE)) if is_file(folder / FILE) else None
    return {"folder": folder.name} if said is None else said


def _checked(source: object, depth: int = 0) -> dict[str, Any] | None:
    """The known keys of a lineage.json; None where it is no valid record."""
    if not isinstance(source, dict) or depth > MAX_ORIGINS:
        return None
    names: dict[str, type] = {"run": str, "name": str, "step": int, "made_by": str, "folder": str}
    found = {key: source[key] for key, kind in names.items() if isinstance(source.get(key), kind)}
    if not ({"run", "name", "step"} <= found.keys() or {"made_by", "folder"} & found.keys()):
        return None
    before = _checked(source.get("from"), depth + 1)
    return found | ({"from": before} if before is not None else {})


def write_lineage(out: Path, verb: str, source: Path, *more: Path) -> None:
    """Write into a model folder that `verb` made it from these. Raises StorageError."""
    described = _chained([source, *more]) if more else describe_source(source)
    with storage_errors(out / FILE):
        write_json(out / FILE, {"made_by": verb, "from": described})


def _chained(sources: Sequence[Path]) -> dict[str, Any]:
    """All origins of several folders as one chain, each run once with the last of its steps that contributed."""
    origins: dict[str, dict[str, Any]] = {}
    for folder in sources:
        source: dict[str, Any] | None = describe_source(folder)
        while source is not None:
            alone = {key: value for key, value in source.items() if key != "from"}
            known = origins.setdefault(alone.get("run", str(alone)), alone)
            known |= {"step": max(known["step"], alone["step"])} if "run" in alone else {}
            source = source.get("from")
    chain: dict[str, Any] = {}
    for alone in reversed(origins.values()):
        chain = alone | ({"from": chain} if chain else {})
    return chain


def lineage_of(run: RunDir, known: Sequence[RunDir] = ()) -> Lineage:
    """The origins of a run; moved runs are looked up among `known`. Raises IntegrityError for a damaged ledger."""
    source, known, seen = _origin(run), [*known, *_parent(run)], {_identity(run)}
    ancestors: list[Ancestor] = []
    unknown: list[str] = []
    while isinstance(source, Mapping):
        if "run" in source:
            identity, step = str(source["run"]), int(source["step"])
            if identity in seen:
                break
            seen.add(identity)
            ancestor = next((each for each in known if _identity(each) == identity), None)
            if ancestor is None:
                unknown.append(f"the run {source['name']} up to step {step:,}, which is not here")
            else:
                ancestors.append(Ancestor(ancestor, step))
                known += _parent(ancestor)
        elif "made_by" not in source:
            unknown.append(f"{source.get('folder', 'a model')}, of whose training nothing is recorded")
        source = source.get("from")
    return Lineage(tuple(ancestors), tuple(unknown))


def _parent(run: RunDir) -> list[RunDir]:
    """The run of the initial checkpoint, if it is where the ledger says."""
    record = read_past(run).init_from or {}
    parent = _run_of(Path(record.get("checkpoint", "")))
    return [parent] if parent is not None else []


def _origin(run: RunDir) -> dict[str, Any] | None:
    """The record of a run's origin; None where it started from initial values."""
    record = read_past(run).init_from
    if record is None:
        return None
    return record["source"] if "source" in record else describe_source(Path(record["checkpoint"]))


def _run_of(folder: Path) -> RunDir | None:
    """The run that a checkpoint belongs to, even if the checkpoint itself is gone; None for other folders."""
    run = RunDir(folder.parent.parent)
    return run if folder.parent == run.checkpoints and is_file(run.events) else None


def _identity(run: RunDir) -> str:
    """`sha` of a run's first record, which identifies the run wherever it lies; "" without one."""
    with suppress(IntegrityError, OSError):
        for record in read_records(run.events):
            return str(record.get("sha", ""))
    return ""
