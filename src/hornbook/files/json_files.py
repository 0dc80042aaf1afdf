"""JSON objects in files: those from elsewhere are read with suspicion, and equal objects are written as equal bytes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hornbook.errors import IntegrityError
from hornbook.files.durable import storage_errors
from hornbook.files.filesystem import regular_size
from hornbook.files.strict_json import InvalidJson, parse_json

_MAX_JSON_BYTES = 64 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from an untrusted file; IntegrityError naming the file if it is anything else."""
    size = regular_size(path)
    if size > _MAX_JSON_BYTES:
        raise IntegrityError(f"{path}: {size} bytes are too many for a configuration")
    try:
        content = parse_json(path.read_bytes())
    except InvalidJson as error:
        raise IntegrityError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise IntegrityError(f"{path}: a JSON object is expected, found {type(content).__name__}")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Sorted, indented, with a final newline: the same content gives the same bytes."""
    with storage_errors(path):
        path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
