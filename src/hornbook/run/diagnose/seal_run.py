"""A seal: one folder with all that says what a run was, in which every byte can be checked without the run.

It holds recipe, environment, digests of the data, ledger, metrics, evaluations and the manifests of the checkpoints,
and on request the newest checkpoint. `SEAL.json` lists every file with its SHA-256, and has a SHA-256 of itself: the
head, one line to publish or to sign. Sealing a run twice gives the same bytes.
"""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.files.durable import storage_errors, writing_folder
from hornbook.files.file_records import FileRecord, Size, read_record
from hornbook.files.filesystem import exists, is_file, is_folder, list_folder, open_inside, walk_files
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import status_of
from hornbook.files.secrets import hide_secrets, holds_secret
from hornbook.run.checkpoints.bound import recipe_in_force, why_foreign
from hornbook.run.checkpoints.commit import list_checkpoints
from hornbook.run.checkpoints.find_checkpoint import newest_verified
from hornbook.run.checkpoints.manifest import MANIFEST, read_manifest
from hornbook.run.doctor.check_run import Checkup, check_run
from hornbook.run.ledger.ledger import read_past
from hornbook.run.machine.environment import code_digest, package_version

SEAL = "SEAL.json"
MANIFESTS = "manifests"
DATA = "data"
_OF_DATA = ("manifest.json", "funnel.json", "tokens/index.json", "tokenizer/tokenizer.json")
"""Small files of the data folder that say what is in it, and how it was made."""
_FOR_PEOPLE = ("env.json", f"{DATA}/manifest.json")
"""Files that nothing is compared with; older versions may have left secrets in them."""
_REMEDY = "seal the run again"
_CHUNK = 4 << 20


class _Entry(FileRecord):
    """A file of a seal."""

    bytes: Size
    sha256: str


class _Seal(FileRecord):
    """SEAL.json."""

    format: Literal["hornbook seal"]
    version: Literal[1]
    ledger: list[str]
    """`sha` of the first and of the newest record."""
    files: dict[str, _Entry]
    head: str


def seal_run(run: RunDir, out: Path, *, weights: bool = False) -> dict[str, Any]:
    """Write the seal of a run that has ended into a new folder; returns the content of SEAL.json.

    Raises UsageError for a run that is under way or a folder that is there; IntegrityError where the run is damaged, or
    a file of it holds what looks like a password or token.
    """
    if status_of(run) == "running":
        raise UsageError(
            f"{run.path} is running: seal it when it has stopped (`hornbook tell {quoted(run.path)} stop`)"
        )
    if exists(out):
        raise UsageError(f"{out} is there already: give --out a new folder")
    checkup = check_run(run, with_data=False)
    if not checkup.ok:
        problems = "; ".join(f"{each.what}: {each.text}" for each in checkup.findings if not each.ok)
        raise IntegrityError(f"{run.path} is damaged, so it is not sealed: {problems}")
    with storage_errors(out), writing_folder(out) as stage:
        for source, name in _files(run, weights=weights):
            _copy(source, stage / name, name)
        seal = _describe(run, stage)
        (stage / SEAL).write_text(json.dumps(seal, indent=1, sort_keys=True) + "\n")
    return seal


def check_seal(folder: Path) -> Checkup:
    """Compare every file of a seal with its list, the list with its head, and the records of the run with each other.

    UsageError where the folder is no seal.
    """
    if not is_file(folder / SEAL):
        raise UsageError(f"{folder} has no {SEAL}: name a folder that `hornbook seal` wrote")
    checkup, run = Checkup(), RunDir(folder)
    checkup.try_check("head", lambda: _check_head(folder))
    if not checkup.ok:
        return checkup
    seal = read_record(folder / SEAL, _Seal, _REMEDY)
    checkup.try_check("files", lambda: _check_files(folder, seal))
    checkup.findings += check_run(run, with_data=False).findings
    checkup.try_check("ledger ends", lambda: _check_ends(run, seal))
    for each in list_folder(folder / MANIFESTS) if is_folder(folder / MANIFESTS) else ():
        checkup.try_check(f"manifest {each.name}", lambda each=each: _check_manifest(run, each))
    return checkup


def _files(run: RunDir, *, weights: bool) -> Iterator[tuple[Path, str]]:
    """(file, its name in the seal)."""
    for path in (run.recipe, run.env, run.data_lock, run.events, run.metrics):
        if is_file(path):
            yield path, path.name
    for path in list_folder(run.evals, "*.json") if is_folder(run.evals) else ():
        yield path, f"evals/{path.name}"
    for folder in list_checkpoints(run.checkpoints):
        yield folder / MANIFEST, f"{MANIFESTS}/{folder.name}/{MANIFEST}"
    data = recipe_in_force(run).data.path
    for name in _OF_DATA:
        if data is not None and is_file(Path(data) / name):
            yield Path(data) / name, f"{DATA}/{name}"
    newest = newest_verified(run.checkpoints) if weights else None
    for path in walk_files(newest) if newest is not None else ():
        yield path, path.relative_to(run.path).as_posix()


def _copy(source: Path, target: Path, name: str) -> None:
    """Copy a file into a seal: those for people without secrets; IntegrityError where another has one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if name in _FOR_PEOPLE:
        target.write_text(hide_secrets(source.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if "/" not in name or name.startswith("evals/"):
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
            if holds_secret(line):
                raise IntegrityError(f"{source}:{number} holds what looks like a password or token: it is not sealed")
    shutil.copyfile(source, target)


def _describe(run: RunDir, stage: Path) -> dict[str, Any]:
    """The content of SEAL.json for the files in a folder."""
    past = read_past(run)
    names = sorted(path.relative_to(stage).as_posix() for path in walk_files(stage))
    seal = {
        "format": "hornbook seal",
        "version": 1,
        "run": run.name,
        "sealed_with": {
            "hornbook": package_version("hornbook"),
            "code_xxh3_128": code_digest(),
            "python": platform.python_version(),
        },
        "ledger": [past.first, next(reversed(past.chain), "")],
        "files": {name: dict(zip(("bytes", "sha256"), _digest(stage, name), strict=True)) for name in names},
    }
    return {**seal, "head": _head(seal)}


def _head(seal: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(seal, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digest(folder: Path, name: str) -> tuple[int, str]:
    """Bytes and SHA-256 of a regular file inside a folder."""
    file, size, digest = open_inside(folder, name), 0, hashlib.sha256()
    try:
        while part := os.read(file, _CHUNK):
            digest.update(part)
            size += len(part)
    finally:
        os.close(file)
    return size, digest.hexdigest()


def _check_head(folder: Path) -> str:
    """Compare SEAL.json with its own head."""
    head = read_record(folder / SEAL, _Seal, _REMEDY).head
    content = json.loads((folder / SEAL).read_bytes())
    del content["head"]
    if _head(content) != head:
        raise IntegrityError(f"{folder / SEAL} is not what was sealed: its head does not fit")
    return head


def _check_files(folder: Path, seal: _Seal) -> str:
    there = {path.relative_to(folder).as_posix() for path in walk_files(folder)} - {SEAL}
    problems = [f"{name} was added" for name in sorted(there - seal.files.keys())]
    for name, entry in seal.files.items():
        try:
            same = _digest(folder, name) == (entry.bytes, entry.sha256)
        except OSError:
            problems.append(f"{name} is gone")
        else:
            problems += [] if same else [f"{name} was changed"]
    if problems:
        raise IntegrityError("; ".join(problems[:8]) + (f" and {len(problems) - 8} more" if len(problems) > 8 else ""))
    return f"{len(seal.files):,} files, {sum(each.bytes for each in seal.files.values()):,} bytes"


def _check_ends(run: RunDir, seal: _Seal) -> str:
    past = read_past(run)
    if [past.first, next(reversed(past.chain), "")] != seal.ledger:
        raise IntegrityError(f"{run.events} is not the ledger that was sealed")
    return "the sealed ledger"


def _check_manifest(run: RunDir, folder: Path) -> str:
    manifest = read_manifest(folder)
    if reason := why_foreign(run, read_past(run), manifest):
        raise IntegrityError(f"{folder}: {reason}")
    return f"of the run, {manifest.total_bytes:,} bytes"
