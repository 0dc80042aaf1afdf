"""Hugging Face folders: our Transformer written as one of transformers' classes, and read back, bit for bit.

The one idea: a stream of tensor transforms driven by a table (`hf/tables`), which says where each of our parameters
lies (`hf/layout`). What no table represents is written under our own names, beside the file that computes it in
transformers (`hf/remote`).
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.durable import storage_errors
from hornbook.files.json_files import read_json, write_json
from hornbook.files.safetensors import Entry
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.generation_config import foreign_generation, foreign_ids, own_generation
from hornbook.model.hf.hf_config import choose_architecture, from_json, identify, to_json
from hornbook.model.hf.hf_layout import (
    Layout,
    expected_shapes,
    joined,
    lay_out,
    parameter_shapes,
    part_of,
    placements,
    slices_of,
    stored_shape,
)
from hornbook.model.hf.hf_tokenizer import place_tokenizer, special_ids
from hornbook.model.hf.remote import source as remote
from hornbook.model.hf.tables.vocabulary_names import Architecture
from hornbook.model.storage.safetensors_folder import (
    DTYPES,
    SHARD_BYTES,
    Reader,
    list_tensors,
    mismatches,
    named,
    refuse_mismatches,
)
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_tensors, whole
from hornbook.text.tokenizer.tokenizer import Tokenizer

Tensors = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


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
    decoder_start: int | None = None,
    like: Path | None = None,
) -> None:
    """Write config.json, generation_config.json, model*.safetensors and the tokenizer's files into `folder`.

    model: the Transformer, its state dict, or (name, tensor) pairs. vocab: rows of the embedding, written as they are.
    dtype: "float32" or "bfloat16" (rounded to nearest). decoder_start: the first token of an encoder-decoder's answers,
    by default the one that is usual in its architecture. like: folder of another program whose special tokens and
    settings of generation are kept. The same input gives the same bytes. The folder is made if it
    is missing; making it appear at once is up to the caller. Errors: StorageError.
    """
    tensors = _named_tensors(model)
    _check_own(tensors, lay_out(config, vocab, choose_architecture(config)))
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        how = {"dtype": dtype, "shard_bytes": shard_bytes, "decoder_start": decoder_start, "like": like}
        create_hf(folder, config, vocab, tokenizer_dir, **how)
        fill_hf(folder, {name: whole(tensor) for name, tensor in tensors.items()}, config, vocab)


def create_hf(
    folder: Path,
    config: ModelConfig,
    vocab: int,
    tokenizer_dir: Path | None,
    *,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
    decoder_start: int | None = None,
    like: Path | None = None,
) -> None:
    """All of `write_hf` but the values: every file is there at its full size. Raises OSError, StorageError."""
    folder.mkdir(exist_ok=True)
    architecture = choose_architecture(config)
    layout = lay_out(config, vocab, architecture)
    create_tensors(folder, {name: stored_shape(parts) for name, parts in layout.items()}, dtype, shard_bytes)
    tokens = special_ids(None)
    if tokenizer_dir is not None:
        tokens = place_tokenizer(tokenizer_dir, folder, config, foreign=like is not None)
    if config.kind == "encoder_decoder":
        usual = tokens[architecture.decoder_start if architecture and architecture.decoder_start else "pad_token_id"]
        tokens |= {"decoder_start_token_id": usual if decoder_start is None else decoder_start}
    if tokenizer_dir is not None and (count := Tokenizer.load(tokenizer_dir).vocab_size) > vocab:
        raise IntegrityError(
            f"{tokenizer_dir}: its tokenizer has {count} ids, and its model only {vocab} rows of embedding: take the "
            "tokenizer that belongs to the model"
        )
    generation = own_generation(folder, config, vocab, tokens) if like is None else foreign_generation(like, tokens)
    tokens |= {} if like is None else foreign_ids(like)
    keys = to_json(config, vocab, dtype=dtype, tokens=tokens)
    if like is not None:
        keys["hornbook"]["imported"] = True
    write_json(folder / "config.json", keys)
    if architecture is None and remote.remote_class(config):
        (folder / remote.FILE).write_text(remote.source(), encoding="utf-8")
    write_json(folder / "generation_config.json", generation)


def fill_hf(folder: Path, tensor_slices: Mapping[str, TensorSlice], config: ModelConfig, vocab: int) -> None:
    """Write slices of our parameters into a folder that `create_hf` made; afterwards they are on disk.

    Ranks that hold other slices write them into the same files, at the same time or later. Raises OSError.
    """
    entries = list_tensors(folder)
    with Writer() as writer:
        for theirs, parts in lay_out(config, vocab, choose_architecture(config)).items():
            for part in parts:
                if part.name not in tensor_slices:
                    continue
                for tensor_slice in slices_of(tensor_slices[part.name], part):
                    tensor = tensor_slice.tensor.to("cpu", DTYPES[entries[theirs].dtype])
                    writer.write(entries[theirs], TensorSlice(tensor, tensor_slice.start))


def _named_tensors(model: nn.Module | Tensors) -> dict[str, Tensor]:
    if isinstance(model, nn.Module):
        return {name: each.detach() for name, each in model.named_parameters()}
    return dict(model)


def _check_own(tensors: Mapping[str, Tensor], layout: Layout) -> None:
    expected = expected_shapes(layout)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = [f"{name} {shape}" for name, shape in found.items() ^ expected.items()]
    assert not wrong, f"tensors do not belong to this configuration: {named(wrong)}"


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
    architecture, entries, reader = identify(keys), list_tensors(folder), Reader()
    names = _todays_names(entries, architecture)
    config, vocab = from_json(keys, tied=_head_is_tied(reader, names, architecture))
    _check_counts(folder, config, architecture, len(entries))
    layout = lay_out(config, vocab, architecture)
    matched, copies, _ = _sort_names(names, layout, architecture)
    _check_theirs(folder, matched, layout)
    where = placements(layout)
    originals = {theirs: where[ours][0][0] for theirs, ours in _copies(architecture).items() if ours in where}
    _check_copies(folder, reader, matched, copies, originals, getattr(config.head, "tied", None))
    return config, vocab, _views(reader, matched, layout)


def _check_counts(folder: Path, config: ModelConfig, architecture: Architecture | None, tensors: int) -> None:
    """Before anything is made for each layer or expert: of neither can there be more than tensors."""
    counts = {"layers": max(config.num_blocks, config.encoder.layers)}
    if architecture is not None and isinstance(config.mlp, ExpertsConfig):
        counts["experts"] = config.mlp.count
    for what, count in counts.items():
        if count > tensors:
            raise IntegrityError(f"{folder}: config.json says {count} {what}, the files hold {tensors} tensors")


def left_out(folder: Path) -> list[str]:
    """Tensors of a folder that belong to other heads than the one its class has, and are not read."""
    architecture = identify(keys := read_json(folder / "config.json"))
    names = _todays_names(list_tensors(folder), architecture)
    config, vocab = from_json(keys, tied=_head_is_tied(Reader(), names, architecture))
    _, _, unused = _sort_names(names, lay_out(config, vocab, architecture), architecture)
    return sorted(unused)


Stored = dict[str, tuple[str, Entry]]
"""Name -> (name in the file, entry)."""


def _todays_names(entries: dict[str, Entry], architecture: Architecture | None) -> Stored:
    """The tensors of a folder by the names that the table knows, without buffers."""
    names: Stored = {}
    for name, entry in entries.items():
        theirs = name
        if architecture is not None:
            if any(fnmatchcase(name, glob) for glob in architecture.buffers):
                continue
            for ending, today in architecture.older.items():
                theirs = theirs.removesuffix(ending) + today if theirs.endswith(ending) else theirs
        names[theirs] = (name, entry)
    return names


def _head_is_tied(reader: Reader, names: Stored, architecture: Architecture | None) -> bool | None:
    """Of an architecture whose files say so themselves: tied if they hold no head, or the embedding again."""
    if architecture is None or not architecture.head_by_file:
        return None
    head, embedding = (
        next(row.theirs for row in architecture.rows if row.ours == ours)
        for ours in ("head.weight", "embedding.weight")
    )
    if head not in names or embedding not in names:
        return True
    return torch.equal(reader.read(*names[head]), reader.read(*names[embedding]))


def _sort_names(names: Stored, layout: Layout, architecture: Architecture | None) -> tuple[Stored, Stored, Stored]:
    """(Tensors of the layout, repeated ones, ones of other heads).

    Names that are no parameter stay among the first, for `_check_theirs` to refuse.
    """
    matched, copies, unused = {}, {}, {}
    for name, stored in names.items():
        full = name if architecture is None or name in layout else architecture.prefix + name
        theirs = full if full in layout and full not in names else name
        if theirs in layout:
            matched[theirs] = stored
        elif theirs in _copies(architecture):
            copies[theirs] = stored
        elif architecture is not None and any(fnmatchcase(theirs, glob) for glob in architecture.unused):
            unused[theirs] = stored
        else:
            matched[theirs] = stored
    return matched, copies, unused


def _copies(architecture: Architecture | None) -> Mapping[str, str]:
    return {"head.weight": "embedding.weight"} if architecture is None else architecture.copies


def _check_theirs(folder: Path, stored: Stored, layout: Layout) -> None:
    entries = {theirs: entry for theirs, (_, entry) in stored.items()}
    problems = mismatches({theirs: stored_shape(parts) for theirs, parts in layout.items()}, entries)
    for theirs in layout:
        if theirs in entries and entries[theirs].dtype not in DTYPES:
            problems.append(f"{theirs}: stored as {entries[theirs].dtype}; {', '.join(DTYPES)} can be read")
    refuse_mismatches(f"{folder}: the tensors do not match config.json", problems)


def _check_copies(
    folder: Path, reader: Reader, entries: Stored, copies: Stored, originals: Mapping[str, str], tied: bool | None
) -> None:
    """A tensor stored although it is tied may only repeat the other. `tied`: what config.json says of the head."""
    for theirs, stored in copies.items():
        original = originals[theirs]
        if not torch.equal(reader.read(*stored), reader.read(*entries[original])):
            if tied is False:
                raise UsageError(
                    f"{folder}: {theirs} differs from {original} (tie_word_embeddings is false): "
                    "only models that share them are supported"
                )
            raise IntegrityError(f"{folder}: config.json ties {theirs} to {original}, but it differs from that")


def _views(reader: Reader, entries: Stored, layout: Layout) -> Iterator[tuple[str, Tensor, bool]]:
    for name, where in placements(layout).items():
        parts = [part_of(reader.read(*entries[theirs]), part) for theirs, part in where]
        yield name, joined(parts), len(layout[where[0][0]]) > 1
