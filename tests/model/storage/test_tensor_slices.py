"""Slices of tensors: the files are those of the safetensors library, however the tensors were cut."""

import errno
import fcntl
import itertools
import os
import random
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hornbook.errors import StorageError
from hornbook.files.json_files import write_json
from hornbook.files.safetensors import read_header
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import LayerConfig, ModelConfig, Parallel
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.hf.hf import create_hf, fill_hf, read_hf, view_hf, write_hf
from hornbook.model.hf.hf_config import choose_architecture
from hornbook.model.hf.hf_layout import lay_out, parameter_shapes
from hornbook.model.storage.safetensors_folder import CODES, list_tensors, plan_shards
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_file, create_tensors, runs
from tests.model.likenesses import gpt2_like

VOCAB = 70
LIKE_GPT2 = gpt2_like(length=8)
CONFIGS = {
    "gpt2": LIKE_GPT2,
    "llama": ModelConfig(layers=2, width=16, heads=4, attention=FullAttentionConfig(kv_heads=2)),
    "qwen3": ModelConfig(
        layers=1, width=16, heads=2, attention=FullAttentionConfig(qk_norm="head"), head=LMHead(tied=False)
    ),
    "neox": LIKE_GPT2.model_copy(update={"block": Parallel(), "position": RopeConfig(fraction=0.5), "heads": 4}),
    "mixtral": ModelConfig(layers=1, width=16, heads=2, mlp=ExpertsConfig(count=5, hidden=12)),
    "own": ModelConfig(layers=1, width=16, heads=2, attention=FullAttentionConfig(out_bias=True)),
    "own experts": ModelConfig(layers=2, width=16, heads=2, first=[LayerConfig(mlp=ExpertsConfig(count=3, hidden=12))]),
}
KINDS = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "neox": "GPTNeoXForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "own": None,
    "own experts": None,
}


def numbers(config: ModelConfig) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in parameter_shapes(config, VOCAB).items()}


def write_whole(folder: Path, tensors: dict[str, torch.Tensor], config: ModelConfig, limit: int) -> None:
    """The reference: whole tensors put together, files written by the library."""
    layout = lay_out(config, VOCAB, choose_architecture(config))
    theirs = {}
    for name, parts in layout.items():
        ours = [tensors[part.name] if part.expert is None else tensors[part.name][part.expert] for part in parts]
        if parts[0].row.form == "heads":
            whole = torch.cat([each.unflatten(0, (config.heads, -1)) for each in ours], 1).flatten(0, 1)
        else:
            whole = torch.cat(ours)
        theirs[name] = (whole.T if parts[0].row.form == "transposed" else whole).contiguous()
    plan = plan_shards({name: tensor.nbytes for name, tensor in theirs.items()}, limit)
    for file, names in plan.items():
        save_file({name: theirs[name] for name in names}, folder / file, metadata={"format": "pt"})


def cut_rows(tensor: torch.Tensor, ranks: int, rank: int) -> TensorSlice:
    """As torch shards: rows in chunks of equal size, so that the last is smaller and may be empty."""
    size = -(-tensor.shape[0] // ranks)
    first = min(rank * size, tensor.shape[0])
    return TensorSlice(tensor[first : first + size].contiguous(), (first,) + (0,) * (tensor.dim() - 1))


def cut_anyhow(tensor: torch.Tensor, ranks: int, rank: int) -> TensorSlice:
    """Uneven stretches of a dim that follows from the tensor's shape."""
    dim = sum(tensor.shape) % tensor.dim()
    draw = random.Random(f"{tuple(tensor.shape)}")
    ends = [0, *sorted(draw.randint(0, tensor.shape[dim]) for _ in range(ranks - 1)), tensor.shape[dim]]
    start = [0] * tensor.dim()
    start[dim] = ends[rank]
    return TensorSlice(tensor.narrow(dim, ends[rank], ends[rank + 1] - ends[rank]).contiguous(), tuple(start))


def tensor_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("cut", [cut_rows, cut_anyhow])
@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_any_number_of_ranks_writes_the_files_of_one(name, ranks, cut, tmp_path):
    config, tensors = CONFIGS[name], numbers(CONFIGS[name])
    assert getattr(choose_architecture(config), "name", None) == KINDS[name]
    for folder, limit in ((tmp_path / "one", 5 * 10**9), (tmp_path / "many", 6000)):
        folder.mkdir()
        write_whole(folder, tensors, config, limit)
        cut_folder = folder.with_suffix(".cut")
        create_hf(cut_folder, config, VOCAB, None, shard_bytes=limit)
        for rank in reversed(range(ranks)):
            fill_hf(cut_folder, {key: cut(each, ranks, rank) for key, each in tensors.items()}, config, VOCAB)
        assert tensor_files(cut_folder) == tensor_files(folder)
        write_hf(folder, tensors, config, VOCAB, None, shard_bytes=limit)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            path.name: path.read_bytes() for path in cut_folder.iterdir()
        }


@pytest.mark.parametrize("name", CONFIGS)
def test_slices_of_views_are_what_was_written(name, tmp_path):
    config, tensors = CONFIGS[name], numbers(CONFIGS[name])
    write_hf(tmp_path, tensors, config, VOCAB, None)
    for key, view, _ in view_hf(tmp_path)[2]:
        for rank in range(3):
            part = cut_rows(tensors[key], 3, rank)
            index = tuple(slice(a, a + n) for a, n in zip(part.start, part.tensor.shape, strict=True))
            assert torch.equal(view[index], part.tensor)


def test_a_view_reads_nothing_but_what_is_looked_at(tmp_path):
    create_tensors(tmp_path, {"big": (1 << 14, 1 << 14)}, "float32", 5 * 10**9)
    from hornbook.model.storage.safetensors_folder import Reader

    def resident() -> int:
        return psutil.Process().memory_info().rss

    before = resident()
    view = Reader().read("big", list_tensors(tmp_path)["big"])
    assert float(view[3000:3010].sum()) == 0.0
    assert resident() - before < 64 << 20, "of 1 GiB"


def test_bfloat16_is_rounded_as_torch_rounds(tmp_path):
    tensors = numbers(LIKE_GPT2)
    write_hf(tmp_path, tensors, LIKE_GPT2, VOCAB, None, dtype="bfloat16")
    for name, tensor in read_hf(tmp_path, dtype=None)[2]:
        assert torch.equal(tensor, tensors[name].to(torch.bfloat16))


dims = st.lists(st.integers(1, 5), min_size=0, max_size=4)


@given(dims, st.randoms(use_true_random=False))
def test_runs_are_the_elements_of_the_rectangle_in_order(shape, draw):
    part = [draw.randint(0, size) for size in shape]
    start = [draw.randint(0, size - n) for size, n in zip(shape, part, strict=True)]
    whole = torch.arange(prod(shape)).reshape(shape)
    expected = whole[tuple(slice(a, a + n) for a, n in zip(start, part, strict=True))].reshape(-1).tolist()
    found = list(runs(tuple(shape), tuple(start), tuple(part))) if 0 not in part else []
    assert list(itertools.chain.from_iterable(range(a, a + n) for a, n in found)) == expected
    ends = [a + n for a, n in found]
    assert all(end < following for end, (following, _) in zip(ends, found[1:], strict=False)), "as long as can be"


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 4))
def test_slices_of_slices_cover_a_tensor_once(shape, tensor_ranks, shard_ranks):
    """A rank of two axes: tensor ranks cut anywhere along some dim, `fully_shard` cuts the rows of what each has."""
    expected = torch.arange(float(prod(shape))).reshape(shape)
    times = torch.zeros(shape)
    with tempfile.TemporaryDirectory() as folder:
        create_file(path := Path(folder) / "tensors", {"p": tuple(shape)})
        with Writer() as writer:
            for tensor_rank, shard_rank in itertools.product(range(tensor_ranks), range(shard_ranks)):
                local = cut_anyhow(expected, tensor_ranks, tensor_rank)
                found = cut_rows(local.tensor, shard_ranks, shard_rank).within(local.start)
                writer.write(read_header(path)["p"], found)
                times[tuple(slice(a, a + n) for a, n in zip(found.start, found.tensor.shape, strict=True))] += 1
        assert torch.equal(load_file(path)["p"], expected)
    assert bool((times == 1).all())


@pytest.mark.parametrize(
    "shapes",
    [
        {"b": (3, 2), "a": (5,), "c": ()},
        {"x": (0, 4), "y": (1,)},
        {'quote"d\\': (2,), "line\nbreak": (1,), "\u00e4\u4e2d": (1,), "A": (3,)},
        {f"layer.{i}.weight": (i,) for i in range(1, 40)},
    ],
)
@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_is_byte_for_byte_that_of_the_library(shapes, metadata, tmp_path):
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "theirs", metadata=metadata)
    create_file(tmp_path / "ours", shapes, "F32", metadata)
    assert (tmp_path / "ours").stat().st_size == (tmp_path / "theirs").stat().st_size
    entries = read_header(tmp_path / "ours")
    with Writer() as writer:
        for name, tensor in tensors.items():
            writer.write(entries[name], TensorSlice(tensor, (0,) * tensor.dim()))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_file_of_many_dtypes_is_byte_for_byte_that_of_the_library(tmp_path):
    tensors = {f"{number}": torch.arange(2 + number).to(dtype) for number, dtype in enumerate(CODES)}
    save_file(tensors, tmp_path / "theirs")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    create_file(tmp_path / "ours", shapes, {name: CODES[tensor.dtype] for name, tensor in tensors.items()})
    entries = read_header(tmp_path / "ours")
    with Writer() as writer:
        for name, tensor in tensors.items():
            writer.write(entries[name], TensorSlice(tensor, (0,)))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_short_writes_are_continued(tmp_path, monkeypatch):
    really = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: really(file, bytes(data)[:7], offset))
    tensor = torch.randn(30)
    create_file(tmp_path / "x", {"a": (30,)})
    with Writer() as writer:
        writer.write(read_header(tmp_path / "x")["a"], TensorSlice(tensor, (0,)))
    monkeypatch.undo()
    save_file({"a": tensor}, tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_a_full_disk_shows_before_any_value_is_written(tmp_path, monkeypatch):
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        write_hf(tmp_path / "out", numbers(LIKE_GPT2), LIKE_GPT2, VOCAB, None)


def test_weights_are_as_readable_as_other_files(tmp_path):
    create_tensors(tmp_path, {"a": (1,)}, "float32", 100)
    write_json(tmp_path / "config.json", {})
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "config.json").stat().st_mode


def test_what_was_written_is_synced_and_every_file_closed(tmp_path, monkeypatch):
    create_tensors(tmp_path, {"a": (2,), "b": (2,)}, "float32", 8)
    entries, synced, before = list_tensors(tmp_path), [], psutil.Process().num_fds()
    really = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), really(file)))
    with Writer() as writer:
        for entry in entries.values():
            writer.write(entry, TensorSlice(torch.ones(2), (0,)))
    assert sorted(synced) == sorted(entry.file.stat().st_ino for entry in entries.values())
    assert psutil.Process().num_fds() == before
    with pytest.raises(AssertionError), Writer() as writer:
        writer.write(entries["a"], TensorSlice(torch.ones(2), (1,)))
    assert psutil.Process().num_fds() == before


LOCKED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    for byte in sys.argv[2:]:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(byte))
            print("free", end=" ")
        except BlockingIOError:
            print("locked", end=" ")
"""
"""Which bytes of a file another process has locked."""


def test_a_byte_of_its_own_is_locked_while_a_rank_writes(tmp_path):
    path = tmp_path / "x"
    create_file(path, {"a": (4, 6)})
    entry = read_header(path)["a"]
    mine = entry.begin + 2 * 6 * 4
    words = [sys.executable, "-c", LOCKED, str(path), *map(str, (0, entry.begin, mine, mine + 1, path.stat().st_size))]
    with Writer() as writer:
        writer.write(entry, TensorSlice(torch.ones(2, 6), (2, 0)))
        during = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert during.split() == ["free", "free", "locked", "free", "free"]
    assert set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()) == {"free"}


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def none(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", none)
    create_file(tmp_path / "x", {"a": (3,)})
    with Writer() as writer:
        writer.write(read_header(tmp_path / "x")["a"], TensorSlice(torch.ones(3), (0,)))
    assert torch.equal(load_file(tmp_path / "x")["a"], torch.ones(3))


@pytest.mark.parametrize("refused", [None, errno.EOPNOTSUPP, errno.EINVAL])
def test_without_a_way_to_reserve_space_files_have_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(refused, "not here")

    if refused is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    create_file(tmp_path / "a.safetensors", {"x": (5, 3)})
    assert read_header(tmp_path / "a.safetensors")["x"].shape == (5, 3)
