"""Files of a data folder appear whole or not at all."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hornbook.errors import StorageError
from hornbook.files.artifact import digest_file, digest_of, read_json, write_json
from hornbook.files.durable import writing
from hornbook.text.store import TableWriter

SCHEMA = pa.schema([("text", pa.string()), ("n", pa.int64())])


def test_a_file_appears_when_the_block_ends(tmp_path: Path):
    path = tmp_path / "sub" / "a.bin"
    with writing(path) as file:
        file.write(b"data")
        assert not path.exists()
    assert path.read_bytes() == b"data"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def fail_while_writing(path: Path) -> None:
    with writing(path) as file:
        file.write(b"new")
        raise RuntimeError


def test_after_an_error_the_old_file_stays_and_no_litter(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        fail_while_writing(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_closed_disk_is_a_storage_error_that_names_the_path(tmp_path: Path, code: int):
    with pytest.raises(StorageError, match=r"a\.bin"), writing(tmp_path / "a.bin"):
        raise OSError(code, os.strerror(code))


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


def test_json_files_and_digests(tmp_path: Path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [2]})
    assert read_json(tmp_path / "a.json") == {"a": [2], "b": 1}
    (tmp_path / "a.json").write_text('{"b": ')
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "none.json") is None
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})
    (tmp_path / "x").write_bytes(b"x" * 3_000_000)
    (tmp_path / "y").write_bytes(b"x" * 2_999_999 + b"y")
    assert digest_file(tmp_path / "x") != digest_file(tmp_path / "y")
