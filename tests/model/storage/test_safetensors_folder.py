"""Untrusted folders: whatever stands in for weights, the answer is an error and nothing is run, mapped or followed."""

import json
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hornbook.errors import IntegrityError, StorageError
from hornbook.files.json_files import read_json, write_json
from hornbook.files.safetensors import read_header
from hornbook.model.storage.safetensors_folder import Reader, list_tensors, plan_shards

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """A file with this header (text as it is), its stated length and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def test_a_good_file_is_listed_and_read(tmp_path):
    save_file(
        {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(1, dtype=torch.bfloat16)}, tmp_path / "model.safetensors"
    )
    entries = list_tensors(tmp_path)
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("BF16", (1,)),
    }
    assert torch.equal(Reader().read("a", entries["a"]), torch.arange(6.0).view(2, 3))


ATTACKS = {
    "length of 2^63": (b"{}", b"", 2**63),
    "length of 2^64 - 1": (b"{}", b"", 2**64 - 1),
    "length beyond the end": ({"a": A}, b"", 10_000),
    "length of zero": (b"{}", b"", 0),
    "no object": (b"[1, 2]", b"", None),
    "no JSON": (b"{nonsense", b"", None),
    "not UTF-8": (b'{"\xff": 1}', b"", None),
    "deep nesting": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", None),
    "repeated key": (b'{"a":' + json.dumps(A).encode() + b',"a":' + json.dumps(A).encode() + b"}", b"\0" * 8, None),
    "overlap": ({"a": A, "b": A | {"data_offsets": [4, 12]}}, b"\0" * 12, None),
    "gap": ({"a": A, "b": A | {"data_offsets": [12, 20]}}, b"\0" * 20, None),
    "begin after end": ({"a": A | {"data_offsets": [8, 0]}}, b"\0" * 8, None),
    "negative begin": ({"a": A | {"data_offsets": [-8, 0]}}, b"", None),
    "negative dim": ({"a": A | {"shape": [-1, -2]}}, b"\0" * 8, None),
    "huge dims": ({"a": A | {"shape": [2**62, 2**62]}}, b"\0" * 8, None),
    "dims as text": ({"a": A | {"shape": ["2"]}}, b"\0" * 8, None),
    "boolean dim": ({"a": A | {"shape": [2, True]}}, b"\0" * 8, None),
    "shape against size": ({"a": A | {"shape": [3]}}, b"\0" * 8, None),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, b"\0" * 8, None),
    "entry is no object": ({"a": 3}, b"", None),
    "truncated data": ({"a": A}, b"\0" * 7, None),
    "trailing data": ({"a": A}, b"\0" * 9, None),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_headers_are_refused_without_using_memory(name, tmp_path):
    header, data, length = ATTACKS[name]
    path = raw(tmp_path / "model.safetensors", header, data, length)
    tracemalloc.start()
    with pytest.raises(IntegrityError, match=r"model\.safetensors"):
        list_tensors(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * path.stat().st_size + 2**20


def test_a_header_of_100_megabytes_is_not_read(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100 * 2**20) + b"{")
        file.truncate(200 * 2**20)  # sparse: no disk is used
    tracemalloc.start()
    with pytest.raises(IntegrityError, match="its header would be 104857600 bytes"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


class Payload:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("form", ["plain", "torch"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_pickles_are_refused_under_any_name_and_not_run(form, name, tmp_path):
    mark = tmp_path / "executed"
    if form == "torch":
        torch.save(Payload(mark), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(IntegrityError, match="pickle"):
        list_tensors(tmp_path)
    assert not mark.exists()


def index(folder: Path, where: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        "",
        3,
        None,
        "a\\b.safetensors",
        "weights.bin",
        "a\0.safetensors",
        ["a"],
    ],
)
def test_an_index_names_plain_files_only(file, tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    index(folder, {"a": file})
    with pytest.raises(IntegrityError, match="plain name"):
        list_tensors(folder)


def test_an_index_must_agree_with_its_files(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    index(tmp_path, {"a": "x.safetensors", "b": "x.safetensors"})
    with pytest.raises(IntegrityError, match=r"x\.safetensors does not hold b"):
        list_tensors(tmp_path)
    index(tmp_path, {"a": "x.safetensors", "b": "y.safetensors"})
    with pytest.raises(IntegrityError, match=r"y\.safetensors: cannot be read: No such file"):
        list_tensors(tmp_path)
    index(tmp_path, [])
    with pytest.raises(IntegrityError, match="no weight_map"):
        list_tensors(tmp_path)


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")  # opening it would wait for ever
    with pytest.raises(IntegrityError, match="not a regular file"):
        list_tensors(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(IntegrityError, match="not a regular file"):
        list_tensors(tmp_path / "folder")


def test_links_to_regular_files_are_followed_as_in_the_cache_of_the_hub(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "blobs" / "0a1b")
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0a1b")
    assert list(list_tensors(tmp_path / "snapshot")) == ["a"]


def test_folders_without_weights(tmp_path):
    with pytest.raises(IntegrityError, match="no such folder"):
        list_tensors(tmp_path / "nowhere")
    with pytest.raises(IntegrityError, match=r"holds no model\.safetensors"):
        list_tensors(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 1, "a": 2}', b"\xff\xfe", b'{"a":' + b"[" * 10**5])
def test_configurations_that_are_not_are_refused(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_shards_are_filled_in_order():
    assert plan_shards({"a": 3, "b": 3}, limit=6) == {"model.safetensors": ["a", "b"]}
    assert plan_shards({"a": 3, "b": 4, "c": 9, "d": 1}, limit=6) == {
        "model-00001-of-00004.safetensors": ["a"],
        "model-00002-of-00004.safetensors": ["b"],
        "model-00003-of-00004.safetensors": ["c"],
        "model-00004-of-00004.safetensors": ["d"],
    }


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"cannot write .*config\.json: No such file"):
        write_json(tmp_path / "missing" / "config.json", {})
