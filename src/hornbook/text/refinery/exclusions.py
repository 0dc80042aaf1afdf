"""Lists of documents that a corpus shall be without.

`hornbook why --exclude` writes them, `hornbook prepare --exclude` reads them: one JSON object per line, `id`, and for
people `source`, `origin`, `shard`, `reason`, `loss`, `run` and `step`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.durable import write_atomic
from hornbook.files.strict_json import InvalidJson, parse_json


def write_exclusions(path: Path, documents: Iterable[Mapping[str, Any]]) -> int:
    """Write a list, each document once; returns their number. Raises StorageError."""
    by_id: dict[str, Mapping[str, Any]] = {}
    for each in documents:
        by_id.setdefault(each["id"], each)
    write_atomic(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in by_id.values()))
    return len(by_id)


def read_exclusions(path: Path) -> list[str]:
    """Ids of the documents in a list, each once. Raises UsageError naming the line that is no entry."""
    found: dict[str, None] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--exclude {path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, 1):
        try:
            entry = parse_json(line) if line.strip() else {"id": ""}
        except InvalidJson as error:
            raise UsageError(f"--exclude {path}:{number}: not a JSON object ({error})") from error
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise UsageError(
                f'--exclude {path}:{number}: has no "id"; `hornbook why RUN@STEP --exclude FILE` writes such'
            )
        if name:
            found[name] = None
    return list(found)
