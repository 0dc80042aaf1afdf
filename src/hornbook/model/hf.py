"""Hugging Face folders: our Transformer written as GPT-2, LLaMA or Qwen3, and read back, bit for bit.

The one idea: a stream of tensor transforms driven by a table (`hf_tables`). Which of our tensors exist, and their
shapes, come from the model of the configuration itself, built without values; the table says where each lies.
What no table represents is written under our own names with `architectures: ["HornbookForCausalLM"]`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from hornbook.durable import storage_error
from hornbook.errors import IntegrityError
from hornbook.model.build import build_model
from hornbook.model.config import ModelConfig
from hornbook.model.hf_config import choose_architecture, from_json, identify, to_json
from hornbook.model.hf_tables import Architecture, Row
from hornbook.model.hf_tokenizer import copy_tokenizer
from hornbook.model.rectangles import Rectangle, Writer, create_tensors, whole
from hornbook.model.safetensors_folder import (
    DTYPES,
    SHARD_BYTES,
    Entry,
    Reader,
    list_tensors,
    named,
    read_json,
    write_json,
)

Tensors = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


@dataclass(frozen=True)
class Placed:
    """One of our parameters (`name`, `shape`) and the row that says where theirs holds it."""

    name: str
    shape: tuple[int, ...]
    row: Row


Layout = dict[str, list[Placed]]
"""Their tensor -> what of ours it holds, in order."""


def parameter_shapes(config: ModelConfig, vocab: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, without allocating any."""
    return {name: tuple(each.shape) for name, each in build_model(config, vocab, "meta").named_parameters()}


def lay_out(config: ModelConfig, vocab: int, architecture: Architecture | None) -> Layout:
    """Where each of our parameters lies, in the order of the layers."""
    shapes = parameter_shapes(config, vocab)
    if architecture is None:
        return {name: [Placed(name, shape, Row(name, name))] for name, shape in shapes.items()}
    rows = {row.ours: row for row in architecture.rows}
    layout: Layout = {}
    for name, shape in shapes.items():
        pattern, layer = _pattern(name)
        row = rows[pattern]
        layout.setdefault(row.theirs.replace("{i}", layer), []).append(Placed(name, shape, row))
    return {theirs: sorted(parts, key=lambda part: part.row.part) for theirs, parts in layout.items()}


def _pattern(name: str) -> tuple[str, str]:
    """`blocks.3.norm1.weight` -> (`blocks.{i}.norm1.weight`, `3`)."""
    parts = name.split(".")
    if parts[0] != "blocks":
        return name, ""
    return ".".join([parts[0], "{i}", *parts[2:]]), parts[1]


def stored_shape(parts: list[Placed]) -> tuple[int, ...]:
    """Shape of their tensor: ours side by side along the output dim, transposed where the row says so."""
    first = parts[0]
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return shape[::-1] if first.row.transpose else shape


def stored_bytes(config: ModelConfig, vocab: int, dtype: str) -> int:
    """Bytes of all weights of a folder that `write_hf` would write."""
    shapes = parameter_shapes(config, vocab).values()
    return sum(torch.Size(shape).numel() for shape in shapes) * getattr(torch, dtype).itemsize


def write_hf(
    folder: Path,
    model: nn.Module | Tensors,
    config: ModelConfig,
    vocab: int,
    tokenizer_dir: Path | None,
    *,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config.json, generation_config.json, model*.safetensors and the tokenizer's files into `folder`.

    model: the Transformer, its state dict, or (name, tensor) pairs. vocab: rows of the embedding, written as they are.
    dtype: "float32" or "bfloat16" (rounded to nearest). The same input gives the same bytes. The folder is made if
    it is missing; making it appear at once is up to the caller. Errors: StorageError.
    """
    tensors = _named_tensors(model)
    _check_own(tensors, lay_out(config, vocab, choose_architecture(config)))
    try:
        create_hf(folder, config, vocab, tokenizer_dir, dtype=dtype, shard_bytes=shard_bytes)
        fill_hf(folder, {name: whole(tensor) for name, tensor in tensors.items()}, config, vocab)
    except OSError as error:
        raise storage_error(error, folder) from error


def create_hf(
    folder: Path,
    config: ModelConfig,
    vocab: int,
    tokenizer_dir: Path | None,
    *,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """All of `write_hf` but the values: every file is there at its full size. Raises OSError, StorageError."""
    folder.mkdir(parents=True, exist_ok=True)
    layout = lay_out(config, vocab, choose_architecture(config))
    create_tensors(folder, {name: stored_shape(parts) for name, parts in layout.items()}, dtype, shard_bytes)
    bos, eos = (None, None) if tokenizer_dir is None else copy_tokenizer(tokenizer_dir, folder, config.position.length)
    write_json(folder / "config.json", to_json(config, vocab, dtype=dtype, bos=bos, eos=eos))
    write_json(folder / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos})


def fill_hf(folder: Path, rectangles: Mapping[str, Rectangle], config: ModelConfig, vocab: int) -> None:
    """Write rectangles of our parameters into a folder that `create_hf` made; afterwards they are on disk.

    Whoever holds other rectangles writes them into the same files, at the same time or later. Raises OSError.
    """
    entries = list_tensors(folder)
    with Writer() as writer:
        for theirs, parts in lay_out(config, vocab, choose_architecture(config)).items():
            first_row = 0
            for part in parts:
                if part.name in rectangles:
                    writer.write(entries[theirs], _to_theirs(rectangles[part.name], part, first_row, entries[theirs]))
                first_row += part.shape[0]


def _to_theirs(ours: Rectangle, part: Placed, first_row: int, entry: Entry) -> Rectangle:
    """The same rectangle as a part of their tensor, in which this parameter begins at `first_row`."""
    tensor, start = ours.tensor.to("cpu", DTYPES[entry.dtype]), (first_row + ours.start[0], *ours.start[1:])
    return Rectangle(tensor.T, start[::-1]) if part.row.transpose else Rectangle(tensor, start)


def _named_tensors(model: nn.Module | Tensors) -> dict[str, Tensor]:
    if isinstance(model, nn.Module):
        return {name: each.detach() for name, each in model.named_parameters()}
    return dict(model)


def _check_own(tensors: Mapping[str, Tensor], layout: Layout) -> None:
    expected = {part.name: part.shape for parts in layout.values() for part in parts}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        wrong = [
            f"{name} {found.get(name)} for {expected.get(name)}"
            for name in found.keys() | expected.keys()
            if found.get(name) != expected.get(name)
        ]
        raise AssertionError(f"tensors do not belong to this configuration: {named(wrong)}")


def read_hf(
    folder: Path, dtype: torch.dtype | None = torch.float32
) -> tuple[ModelConfig, int, Iterator[tuple[str, Tensor]]]:
    """(configuration, rows of the embedding, iterator of (our name, tensor on the CPU)) of a local folder.

    All names and shapes are checked before this returns; tensors are read one by one as the iterator advances.
    dtype: what to convert to, None for as stored. Errors: IntegrityError (files damaged, tensors missing, unexpected or
    mis-shaped, pickles), UsageError (an architecture or an option that our Transformer does not have).
    """
    config, vocab, views = view_hf(folder)
    stream = (
        (name, view.to(dtype or view.dtype, copy=shared, memory_format=torch.contiguous_format))
        for name, view, shared in views
    )
    return config, vocab, stream


def view_hf(folder: Path) -> tuple[ModelConfig, int, Iterator[tuple[str, Tensor, bool]]]:
    """As `read_hf`, but tensors are views of the files as stored: what is not looked at is not read.

    The third of each is whether another of our tensors shares its memory.
    """
    keys = read_json(folder / "config.json")
    config, vocab = from_json(keys)
    entries = list_tensors(folder)
    if config.layers > len(entries):
        raise IntegrityError(
            f"{folder}: config.json says {config.layers} layers, the files hold {len(entries)} tensors"
        )
    architecture = identify(keys)
    layout = lay_out(config, vocab, architecture)
    entries, extra = _match_names(entries, layout, architecture)
    _check_theirs(folder, entries, layout)
    reader = Reader()
    _check_tied_copy(folder, reader, entries, extra, layout)
    return config, vocab, _views(reader, entries, layout)


def _match_names(
    entries: dict[str, Entry], layout: Layout, architecture: Architecture | None
) -> tuple[dict[str, tuple[str, Entry]], dict[str, tuple[str, Entry]]]:
    """({name in the layout: (name in the file, entry)}, the same for a redundant head), without buffers.

    Names that are no parameter stay in the first, for `_check_theirs` to refuse.
    """
    matched, extra = {}, {}
    for name, entry in entries.items():
        theirs = name
        if architecture is not None:
            if any(fnmatchcase(name, glob) for glob in architecture.buffers) and name not in layout:
                continue
            full = architecture.prefix + name
            if name not in layout and full in layout and full not in entries:
                theirs = full
        redundant = theirs not in layout and theirs in ("lm_head.weight", "head.weight")
        (extra if redundant else matched)[theirs] = (name, entry)
    return matched, extra


def _check_theirs(folder: Path, entries: Mapping[str, tuple[str, Entry]], layout: Layout) -> None:
    problems = []
    if missing := layout.keys() - entries.keys():
        problems.append(f"missing: {named(missing)}")
    if unexpected := entries.keys() - layout.keys():
        problems.append(f"unexpected: {named(unexpected)}")
    for theirs, parts in layout.items():
        if theirs not in entries:
            continue
        entry, shape = entries[theirs][1], stored_shape(parts)
        if entry.shape != shape:
            problems.append(f"{theirs}: expected shape {list(shape)}, found {list(entry.shape)}")
        if entry.dtype not in DTYPES:
            problems.append(f"{theirs}: stored as {entry.dtype}; {', '.join(DTYPES)} can be read")
    if problems:
        shown = problems[:8] + ([f"and {len(problems) - 8} more"] if len(problems) > 8 else [])
        raise IntegrityError(f"{folder}: the tensors do not match config.json:\n  " + "\n  ".join(shown))


def _check_tied_copy(
    folder: Path,
    reader: Reader,
    entries: Mapping[str, tuple[str, Entry]],
    extra: Mapping[str, tuple[str, Entry]],
    layout: Layout,
) -> None:
    """A head stored although it is tied may only repeat the embedding."""
    embedding = next(theirs for theirs, parts in layout.items() if parts[0].name == "embedding.weight")
    for theirs, stored in extra.items():
        a, b = reader.read(*stored), reader.read(*entries[embedding])
        if not torch.equal(a, b):
            raise IntegrityError(f"{folder}: config.json ties the head to the embedding, but {theirs} differs from it")


def _views(
    reader: Reader, entries: Mapping[str, tuple[str, Entry]], layout: Layout
) -> Iterator[tuple[str, Tensor, bool]]:
    for theirs, parts in layout.items():
        stored = reader.read(*entries[theirs])
        ours = stored.T if parts[0].row.transpose else stored
        for part, view in zip(parts, ours.split([each.shape[0] for each in parts]), strict=True):
            yield part.name, view, len(parts) > 1
