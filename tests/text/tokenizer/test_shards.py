"""Token shards: what is written is what is read, and no damage passes."""

import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

from hornbook.errors import IntegrityError
from hornbook.files.artifact import read_json
from hornbook.text.tokenizer import shards
from hornbook.text.tokenizer.shards import describe_shard, verify_shard, writing_shard
from hornbook.text.tokenizer.token_dtypes import dtype_for

DOCUMENTS = [[0, 1, 2], [0], [0, *range(500)]]


def write(data: Path, documents: list[list[int]] = DOCUMENTS, dtype: str = "uint16") -> Path:
    path = data / "tokens" / "train" / "s" / "00003"
    with writing_shard(path, dtype) as writer:
        for number, ids in enumerate(documents):
            writer.add(ids, f"id{number}", f"file:{number}", 10 * number)
    return path


@pytest.mark.parametrize(("dtype", "stored"), [("uint16", "<u2"), ("uint32", "<u4")])
def test_what_is_written_is_read(tmp_path: Path, dtype: str, stored: str):
    path = write(tmp_path, dtype=dtype)
    tokens = np.fromfile(f"{path}.bin", stored)
    ends = np.fromfile(f"{path}.idx", "<u8")
    assert ends.tolist() == [3, 4, 505]
    assert [part.tolist() for part in np.split(tokens, ends[:-1].astype(int))] == DOCUMENTS
    assert pq.read_table(f"{path}.docs.parquet").to_pylist()[2] == {"id": "id2", "origin": "file:2", "bytes": 20}
    info = describe_shard(tmp_path, "train", "s", 3)
    assert (info.name, info.tokens, info.documents, info.bytes) == ("tokens/train/s/00003", 505, 3, 30)
    assert info.digest == xxhash.xxh3_128_hexdigest(Path(f"{path}.bin").read_bytes())
    verify_shard(path)


def test_blocks_are_checksums_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "BLOCK_BYTES", 64)
    path = write(tmp_path)
    data = Path(f"{path}.bin").read_bytes()
    expected = [xxhash.xxh3_64_hexdigest(data[start : start + 64]) for start in range(0, len(data), 64)]
    assert read_json(Path(f"{path}.json"))["blocks"] == expected
    verify_shard(path)


def test_a_shard_without_documents(tmp_path: Path):
    path = write(tmp_path, [])
    assert Path(f"{path}.bin").read_bytes() == b""
    assert describe_shard(tmp_path, "train", "s", 3).tokens == 0
    verify_shard(path)


def test_the_smallest_type_that_holds_the_ids():
    assert [dtype_for(vocab) for vocab in (257, 65536, 65537)] == ["uint16", "uint16", "uint32"]


def test_an_id_that_does_not_fit_is_never_cut(tmp_path: Path):
    with pytest.raises(AssertionError):
        write(tmp_path, [[70_000]])


@pytest.mark.parametrize("ending", [".bin", ".idx", ".docs.parquet"])
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, ending: str):
    path = write(tmp_path)
    file = Path(f"{path}{ending}")
    whole = file.read_bytes()
    draw = random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=file.name):
            verify_shard(path)
    file.write_bytes(whole)
    verify_shard(path)


def test_the_damaged_block_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "BLOCK_BYTES", 64)
    path = write(tmp_path)
    data = bytearray(Path(f"{path}.bin").read_bytes())
    data[5 * 64 + 3] ^= 1
    Path(f"{path}.bin").write_bytes(data)
    with pytest.raises(IntegrityError, match="block 5 "):
        verify_shard(path)


@pytest.mark.parametrize("ending", [".bin", ".idx", ".docs.parquet", ".json"])
def test_a_missing_or_short_file_is_found(tmp_path: Path, ending: str):
    path = write(tmp_path)
    file = Path(f"{path}{ending}")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] if ending != ".json" else whole[:20])
    with pytest.raises(IntegrityError, match=f"00003{ending}"):
        verify_shard(path)
    file.unlink()
    with pytest.raises(IntegrityError, match=f"00003{ending}"):
        verify_shard(path)


def fail_midway(data: Path) -> None:
    with writing_shard(data / "tokens" / "00000", "uint16") as writer:
        writer.add([1], "a", "b", 1)
        raise RuntimeError


def test_a_failed_shard_leaves_nothing(tmp_path: Path):
    with pytest.raises(RuntimeError):
        fail_midway(tmp_path)
    assert list((tmp_path / "tokens").iterdir()) == []
