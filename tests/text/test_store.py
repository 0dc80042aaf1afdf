"""Tables of a data folder."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hornbook.errors import StorageError
from hornbook.files.durable import writing
from hornbook.text.store import TableWriter

SCHEMA = pa.schema([("text", pa.string()), ("n", pa.int64())])


def fill_disk(path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as full, writing(path), TableWriter(full, SCHEMA) as table:
        for number in range(20_000):
            table.add((os.urandom(500).hex(), number), 1000)


def test_a_table_that_meets_a_full_disk_says_so(tmp_path: Path):
    with pytest.raises(StorageError, match="free some space"):
        fill_disk(tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def test_row_groups_are_cut_by_size_and_bytes_are_equal(tmp_path: Path):
    for name in ("a", "b"):
        with writing(tmp_path / name) as file, TableWriter(file, SCHEMA) as table:
            for number in range(40):
                table.add(("x" * 500_000, number), 500_000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    read = pq.ParquetFile(tmp_path / "a")
    assert read.num_row_groups > 1
    assert read.read().column("n").to_pylist() == list(range(40))
