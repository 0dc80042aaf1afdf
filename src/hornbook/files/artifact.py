"""Work whose result is files: JSON and digests of files, and a task, which is finished when its manifest says so.

A manifest is written last and holds the task's key, a digest of all that the result depends on. A task that was killed
or that is asked for under another key does its work again; no manifest vouches for files of another key.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import xxhash

from hornbook.files.durable import storage_errors, sync_file, write_atomic
from hornbook.files.filesystem import open_inside

_CHUNK, _SMALL = 4 << 20, 1 << 16
_KEY = "key"


class Task(Protocol):
    """A piece of work whose result is files."""

    @property
    def manifest(self) -> Path:
        """The JSON file that says that the task is finished."""
        ...

    def key(self) -> str:
        """Digest of everything that the result depends on."""
        ...


def once(task: Task, work: Callable[[], dict[str, Any]], is_whole: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Do the work of a task unless it is finished; returns what `work` returned, now or in the process that did it.

    is_whole: whether the files of a finished task are still there, given what its work returned.
    """
    found = finished(task.manifest, task.key())
    if found is not None and is_whole(found):
        return found
    task.manifest.unlink(missing_ok=True)
    facts = work()
    finish(task.manifest, task.key(), facts)
    return facts


def finished(manifest: Path, key: str) -> dict[str, Any] | None:
    """What was written by `finish` under the same key; None where the task is not finished."""
    found = read_json(manifest)
    if not isinstance(found, dict) or found.get(_KEY) != key:
        return None
    return {name: value for name, value in found.items() if name != _KEY}


def finish(manifest: Path, key: str, facts: dict[str, Any]) -> None:
    """Say that a task is finished, with what there is to say of its result. Raises StorageError."""
    write_json(manifest, {_KEY: key, **facts})


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file as a whole; its folder is made. Raises StorageError."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(data, indent=1, ensure_ascii=True) + "\n")


def read_json(path: Path) -> Any:
    """A JSON file, or None where it is absent or torn."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def digest_file(path: Path) -> str:
    """XXH3-128 of a file's bytes, as hex. Raises OSError."""
    with path.open("rb") as file:
        return _measure(file.fileno())[1]


def digest_of(value: Any) -> str:
    """XXH3-128 of a JSON value, as hex; keys are sorted first."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, ensure_ascii=True).encode())


def measure_file(folder: Path, name: str, *, sync: bool = False) -> tuple[int, str]:
    """Bytes and XXH3-128 of a file inside a folder (`open_inside`), read after its bytes are on disk if `sync`."""
    file = open_inside(folder, name)
    try:
        if sync:
            sync_file(file)
        return _measure(file)
    finally:
        os.close(file)


def _measure(file: int) -> tuple[int, str]:
    length = os.fstat(file).st_size
    hasher, size, buffer = xxhash.xxh3_128(), 0, bytearray(min(_CHUNK, max(length, _SMALL)))
    while count := os.readv(file, [buffer]):
        hasher.update(memoryview(buffer)[:count])
        size += count
    return size, hasher.hexdigest()
