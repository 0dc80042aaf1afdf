"""Folders of models after surgery: what a run saves, and the one way to read them.

| surgery | folder |
|---|---|
| an adapter (lora, dora, bottleneck, ia3, prompt) | `adapters/files`: the adapter alone; the base lies elsewhere |
| fake_quant, freeze, sparse | a Hugging Face folder of all weights, with the steps in config.json's key `hornbook` |

Trained scales of fake_quant lie beside the weights in added.safetensors.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.json_files import read_json, write_json
from hornbook.files.safetensors import read_header
from hornbook.model.config import surgery_config as surgery
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import rounded_rows
from hornbook.model.config.replaced_config import ReplacedHead, SmallerGenerator
from hornbook.model.hf.generation_config import is_foreign
from hornbook.model.hf.hf import create_hf, fill_hf, read_hf, view_hf
from hornbook.model.hf.hf_config import exported
from hornbook.model.hf.hf_layout import parameter_shapes
from hornbook.model.storage.safetensors_folder import Reader
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_file
from hornbook.model.surgery.adapters.adapter_files import (
    AdapterSpec,
    base_of,
    check_base,
    create_adapter,
    fill_adapter,
    is_adapter,
    read_meta,
    tensors_digest,
)
from hornbook.model.surgery.adapters.lora import merged_tensors
from hornbook.model.surgery.adapters.reading import read_adapter
from hornbook.model.surgery.operate import added_shapes, build_operated, fill
from hornbook.model.transformer import Transformer
from hornbook.text.tokenizer.tokenizer import Tokenizer

ADDED = "added.safetensors"
AVERAGE = "trainer/average.safetensors"
"""In the checkpoint of a run, the average of the trained weights that `train.average` keeps."""
BASE = "../../base"
"""Where the checkpoint of a run finds the run's copy of its base."""
_STEPS = TypeAdapter(list[surgery.SurgeryStep])


def create_operated(
    folder: Path,
    config: ModelConfig,
    vocab: int,
    steps: Sequence[surgery.SurgeryStep],
    tokenizer: Path | None,
    base_digest: str,
    decoder_start: int | None = None,
    dtype: str = "float32",
) -> None:
    """Make every file of a checkpoint's weights, without values yet. Raises OSError, StorageError."""
    if surgery.adapter_of(steps) is not None:
        create_adapter(folder, AdapterSpec(config, vocab, tuple(steps), BASE, base_digest), tokenizer)
        return
    create_hf(folder, config, vocab, tokenizer, decoder_start=decoder_start, dtype=dtype)
    if not steps:
        return
    keys = read_json(folder / "config.json")
    keys["hornbook"]["surgery"] = [step.model_dump(mode="json") for step in steps]
    write_json(folder / "config.json", keys)
    if shapes := added_shapes(config, vocab, steps):
        create_file(folder / ADDED, shapes)


def fill_operated(
    folder: Path,
    config: ModelConfig,
    vocab: int,
    steps: Sequence[surgery.SurgeryStep],
    tensor_slices: Mapping[str, TensorSlice],
) -> None:
    """Write slices of the parameters into what `create_operated` made. Raises OSError."""
    if surgery.adapter_of(steps) is not None:
        fill_adapter(folder, AdapterSpec(config, vocab, tuple(steps), BASE, ""), tensor_slices)
        return
    added = added_shapes(config, vocab, steps) if steps else {}
    fill_hf(folder, {name: each for name, each in tensor_slices.items() if name not in added}, config, vocab)
    if added:
        entries = read_header(folder / ADDED)
        with Writer() as writer:
            for name in added.keys() & tensor_slices.keys():
                part = tensor_slices[name]
                writer.write(entries[name], TensorSlice(part.tensor.float().cpu(), part.start))


def read_steps(folder: Path) -> list[surgery.SurgeryStep]:
    """Surgery that a folder of whole weights needs to compute what was trained. IntegrityError if it is damaged."""
    own = read_json(folder / "config.json").get("hornbook")
    given: Any = own.get("surgery", []) if isinstance(own, dict) else []
    try:
        return _STEPS.validate_python(given)
    except ValidationError as error:
        raise IntegrityError(f"{folder / 'config.json'}: surgery cannot be read: {error}") from error


def read_added(folder: Path) -> dict[str, Tensor] | None:
    """What surgery added and a folder of whole weights stores; None if nothing."""
    if not (folder / ADDED).is_file():
        return None
    reader = Reader()
    return {name: reader.read(name, entry) for name, entry in read_header(folder / ADDED).items()}


@dataclass(frozen=True)
class Operated:
    """A model as it was trained: its base, the surgery, the values of what surgery added."""

    config: ModelConfig
    vocab: int
    steps: tuple[surgery.SurgeryStep, ...]
    base: Iterator[tuple[str, Tensor]]
    """Values of the base's parameters."""
    added: dict[str, Tensor] | None
    base_folder: Path

    def build(self, device: torch.device | str = "cpu") -> Transformer:
        """The model on the device, in evaluation mode."""
        return fill(build_operated(self.config, self.vocab, self.steps), self.base, self.added, device=device)


def decoder_start_of(folder: Path) -> int | None:
    """The first token of an encoder-decoder's answers, by the config.json of a model; None where it says nothing."""
    start = read_json((base_of(folder) if is_adapter(folder) else folder) / "config.json").get("decoder_start_token_id")
    return start if isinstance(start, int) else None


def read_merged(folder: Path, *, average: bool = False) -> tuple[ModelConfig, int, Iterator[tuple[str, Tensor]], Path]:
    """(configuration, rows of the embedding, parameters, folder of the tokenizer) of one plain model.

    An adapter is merged with its base; rounded weights are what they are rounded to; blocks of multi-token prediction
    and generators are left out. Errors: as `read_operated`; UsageError where an adapter cannot be merged.
    """
    found = read_operated(folder, average=average)
    tokenizer = folder if (folder / "tokenizer.json").is_file() else found.base_folder
    plain = all(isinstance(step, surgery.Freeze | surgery.Sparse) for step in found.steps)
    stream = found.base if plain else merged_tensors(found.build())
    kept = ((name, tensor) for name, tensor in stream if not name.startswith(_LEFT_OUT))
    return exported(found.config), found.vocab, kept, tokenizer


def read_generator(folder: Path) -> tuple[ModelConfig, int, Iterator[tuple[str, Tensor]], Path]:
    """As `read_merged`, of the generator of replaced-token detection: a masked model of its own.

    UsageError where there is none.
    """
    found = read_operated(folder)
    head = found.config.head
    if not isinstance(head, ReplacedHead) or not isinstance(head.generator, SmallerGenerator):
        raise UsageError(
            f"{folder} has no generator: a run with model.head.kind replaced has one in its checkpoints; "
            "leave out --generator"
        )
    shared = ("embedding.", "positions.", "entrance.")
    stream = (
        (name.removeprefix(_GENERATOR), tensor) for name, tensor in found.base if name.startswith((_GENERATOR, *shared))
    )
    return head.generator.alone(found.config), found.vocab, stream, folder


def without_padding(
    base: Path, config: ModelConfig, vocab: int, stream: Iterator[tuple[str, Tensor]], tokenizer: Path
) -> tuple[ModelConfig, int, Iterator[tuple[str, Tensor]]]:
    """(configuration, rows, parameters) without the rows of the embedding that round up a tokenizer's size.

    Other programs refuse such rows, or choose one as the next token. `base`: a model of another program stays as it is.
    """
    tokens = Tokenizer.load(tokenizer).vocab_size if (tokenizer / "tokenizer.json").is_file() else vocab
    if is_foreign(base) or vocab != rounded_rows(tokens):
        return config, vocab, stream
    shapes = parameter_shapes(config, tokens)
    cut = ((name, each[tuple(map(slice, shapes[name]))]) for name, each in stream)
    return config.model_copy(update={"vocab": tokens}), tokens, cut


_GENERATOR = "head.generator."
_LEFT_OUT = ("mtp.", _GENERATOR)


def left_out(folder: Path) -> dict[str, int]:
    """What of a folder `read_merged` leaves out, for it serves training alone: numbers of blocks."""
    config = view_hf(base_of(folder) if is_adapter(folder) else folder)[0]
    generator = config.head.generator_of(config)
    found = {"mtp_blocks": config.mtp.depth, "generator_blocks": 0 if generator is None else generator.layers}
    return {name: count for name, count in found.items() if count}


def left_out_bytes(file: Path) -> int:
    """Bytes of what `read_merged` leaves out in one of a folder's files of weights."""
    return sum(each.end - each.begin for name, each in read_header(file).items() if name.startswith(_LEFT_OUT))


def read_operated(folder: Path, *, average: bool = False) -> Operated:
    """Read an adapter folder and its base, or a folder of whole weights. Errors: as `read_hf` and `read_adapter`.

    IntegrityError too where the adapter was made for another base. average: take the average of the trained weights
    that a checkpoint holds beside them; UsageError where it has none.
    """
    found = _read_operated(folder)
    return _averaged(found, folder) if average else found


def _averaged(found: Operated, folder: Path) -> Operated:
    if not (folder / AVERAGE).is_file():
        raise UsageError(f"{folder} has no average of the weights: train with --train.average ema, or leave --average")
    entries, reader = read_header(folder / AVERAGE), Reader()

    def replaced(stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream:
            yield name, reader.read(name, entries[name]) if name in entries else tensor

    added = None if found.added is None else dict(replaced(found.added.items()))
    return replace(found, base=replaced(found.base), added=added)


def _read_operated(folder: Path) -> Operated:
    if not is_adapter(folder):
        config, vocab, stream = read_hf(folder)
        return Operated(config, vocab, tuple(read_steps(folder)), stream, read_added(folder), folder)
    base = base_of(folder)
    config, vocab, stream = read_hf(base)
    steps, added = read_adapter(folder, config, vocab)
    expected = read_meta(folder).base_digest
    if expected is not None:
        check_base(folder, expected, tensors_digest(read_hf(base)[2]), base)
    return Operated(config, vocab, steps, stream, added, base)
