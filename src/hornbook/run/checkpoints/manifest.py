"""MANIFEST.json: what a checkpoint holds, to the byte.

The manifest lists size and XXH3-128 of every file and carries a hash of itself. A directory is a checkpoint only
if its manifest verifies: tensor files of every common format load with flipped bits or a tail of zeros.
Names in a manifest are input like any other: only regular files inside the directory are ever opened.
"""

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hornbook.errors import IntegrityError
from hornbook.files.artifact import digest_of, measure_file
from hornbook.files.durable import sync_folders, write_file
from hornbook.files.filesystem import is_own_folder, open_inside, walk_files

MANIFEST = "MANIFEST.json"
FORMAT = "hornbook checkpoint"
VERSION = 1

_MANIFEST_LIMIT = 16 << 20
_SELF = "xxh3_128"


class ValidationLoss(NamedTuple):
    """Validation loss at a step, by which checkpoints are compared."""

    loss: float
    rows: str | None
    """Names the rows it was measured on; figures of other rows cannot be compared. None: they are not recorded."""

    def beats(self, other: "ValidationLoss | None") -> bool:
        """Whether this is the better one. One of other rows is no measure: the newer one counts."""
        if not math.isfinite(self.loss):
            return False
        return other is None or other.rows != self.rows or self.loss < other.loss


@dataclass(frozen=True)
class Manifest:
    """Contents of a checkpoint."""

    step: int
    tokens: int
    score: ValidationLoss | None = None
    final: bool = False
    """Whether the run was complete."""
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Relative POSIX name to (size in bytes, XXH3-128 in hex)."""
    ledger: tuple[str, str] | None = None
    """`sha` of the first and the newest record in the ledger of the run that made it; None: no run, or an older one."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(size for size, _ in self.files.values())

    @property
    def tensors(self) -> str:
        """Digest of the files of tensors, weights and moments: equal where they have the same bits."""
        return digest_of({name: digest for name, (_, digest) in self.files.items() if name.endswith(".safetensors")})

    @property
    def digest(self) -> str:
        """Its hash of itself, in hex."""
        return digest_of(_body(self))


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Hash and sync every file under `folder`, then write and sync the manifest with them, and the directories."""
    paths = [path.relative_to(folder) for path in sorted(walk_files(folder))]
    files = {path.as_posix(): measure_file(folder, path.as_posix(), sync=True) for path in paths}
    manifest = replace(manifest, files=files)
    write_file(folder / MANIFEST, _encode(manifest))
    sync_folders(folder, paths)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest, if it is whole; IntegrityError saying what is wrong. The files are not looked at."""
    try:
        raw = _read_small(folder, MANIFEST)
        data = json.loads(raw)
        claimed = data.pop(_SELF)
        if claimed != digest_of(data):
            raise IntegrityError(f"{folder}: {MANIFEST} does not match its own hash")
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise IntegrityError(f"{folder}: {MANIFEST} is of version {data['version']}, this hornbook reads {VERSION}")
        files = {name: (int(entry["size"]), str(entry["xxh3_128"])) for name, entry in data["files"].items()}
        first, last = data.get("ledger") or ("", "")
        ledger = (str(first), str(last)) if first else None
        score = None if data["score"] is None else ValidationLoss(data["score"], data.get("scored_rows"))
        manifest = Manifest(int(data["step"]), int(data["tokens"]), score, bool(data["final"]), files, ledger)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{folder}: {MANIFEST} cannot be read ({type(error).__name__})") from error
    if raw != _encode(manifest):
        raise IntegrityError(f"{folder}: {MANIFEST} is not as it was written")
    return manifest


def verify_folder(folder: Path) -> Manifest:
    """Read every byte the manifest lists and compare; IntegrityError naming every file that is wrong."""
    try:
        found = is_own_folder(folder)
    except OSError as error:
        raise IntegrityError(f"{folder} cannot be read ({error.strerror})") from error
    if not found:
        raise IntegrityError(f"{folder}: not a directory")
    manifest = read_manifest(folder)
    problems = [problem for name, entry in manifest.files.items() if (problem := _compare(folder, name, entry))]
    if problems:
        raise IntegrityError(f"{folder}: " + "; ".join(problems))
    return manifest


def unlisted(folder: Path, manifest: Manifest) -> list[str]:
    """Files in the folder that the manifest does not list."""
    there = (path.relative_to(folder).as_posix() for path in walk_files(folder))
    return [name for name in there if name != MANIFEST and name not in manifest.files]


def _compare(folder: Path, name: str, expected: tuple[int, str]) -> str | None:
    """What is wrong with one file, or None."""
    try:
        size, digest = measure_file(folder, name)
    except FileNotFoundError:
        return f"{name} is missing"
    except IntegrityError as error:
        return str(error)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    if size != expected[0]:
        return f"{name} has {size:,} bytes instead of {expected[0]:,}"
    return None if digest == expected[1] else f"{name} is damaged (its hash differs)"


def _read_small(folder: Path, name: str) -> bytes:
    try:
        file = open_inside(folder, name)
    except FileNotFoundError:
        raise IntegrityError(f"{folder}: there is no {name}: a save was interrupted, or files were removed") from None
    except OSError as error:
        raise IntegrityError(f"{folder}: {name} cannot be read ({error.strerror})") from error
    with os.fdopen(file, "rb") as stream:
        raw = stream.read(_MANIFEST_LIMIT + 1)
    if len(raw) > _MANIFEST_LIMIT:
        raise IntegrityError(f"{folder}: {name} is larger than {_MANIFEST_LIMIT:,} bytes")
    return raw


def _encode(manifest: Manifest) -> bytes:
    return (json.dumps({**_body(manifest), _SELF: manifest.digest}, indent=1) + "\n").encode()


def _body(manifest: Manifest) -> dict[str, Any]:
    files = {name: {"size": size, "xxh3_128": digest} for name, (size, digest) in manifest.files.items()}
    data = {
        "format": FORMAT,
        "version": VERSION,
        "step": manifest.step,
        "tokens": manifest.tokens,
        "score": None if manifest.score is None else manifest.score.loss,
        "final": manifest.final,
        "files": files,
    }
    if manifest.score is not None and manifest.score.rows is not None:
        data["scored_rows"] = manifest.score.rows
    return data if manifest.ledger is None else {**data, "ledger": list(manifest.ledger)}
