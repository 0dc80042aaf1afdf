"""Helpers for readers: the rows of one file, made in the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.readers import read_file

Rows = list[Document | Rejected]
ReadBytes = Callable[..., Rows]


@pytest.fixture
def read_bytes(tmp_path: Path) -> ReadBytes:
    """Write bytes to a file of that name and read it; `max_bytes` and what a source says by keyword."""

    def read(name: str, data: bytes, max_bytes: int = 2**20, **source: Any) -> Rows:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        config = SourceConfig(paths=[str(path)], **source)
        (file,) = list_inputs("s", config)
        return list(read_file(file, ReadOptions.of(config, max_bytes)))

    return read
