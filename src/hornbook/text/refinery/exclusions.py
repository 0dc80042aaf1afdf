"""Lists of documents that a corpus shall be without.

`hornbook why --exclude` writes them, `hornbook prepare --exclude` reads them: one JSON object per line, `id` and
`source`, and for people `origin`, `shard`, `reason`, `loss`, `run` and `step`. Sources may have documents of the same
id, so a document is named with its source (`text.exclude`: `SOURCE::ID`), unless nothing is prepared from that source.
"""

import json
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.durable import write_atomic
from hornbook.files.strict_json import InvalidJson, parse_json


def write_exclusions(path: Path, documents: Iterable[Mapping[str, Any]]) -> int:
    """Write a list, each document once; returns their number. Raises StorageError."""
    once: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in documents:
        once.setdefault((each["source"], each["id"]), each)
    write_atomic(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in once.values()))
    return len(once)


def qualified(source: str, name: str) -> str:
    """The name of the document of this id in one source."""
    return f"{source}::{name}"


def read_exclusions(path: Path, sources: Container[str]) -> list[str]:
    """Names of the documents in a list, each once. Raises UsageError naming the line that is no entry.

    sources: those that text is prepared from. An entry of another source, or of none, is an id in all of them.
    """
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
            source = entry.get("source")
            found[qualified(source, name) if isinstance(source, str) and source in sources else name] = None
    return list(found)
