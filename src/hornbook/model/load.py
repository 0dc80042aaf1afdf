"""A model and its tokenizer from a checkpoint folder: the one way in for generate, eval and export."""

from dataclasses import dataclass
from pathlib import Path

import torch

from hornbook.errors import IntegrityError
from hornbook.model.config import ModelConfig
from hornbook.model.surgery.folders import read_operated
from hornbook.model.surgery.quantize import is_quantized, read_quantized
from hornbook.model.transformer import Transformer
from hornbook.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint folder holds."""

    model: Transformer
    """In evaluation mode; parameters float32."""
    tokenizer: Tokenizer | None
    """None where the folder has no tokenizer.json."""
    config: ModelConfig
    vocab: int
    """Rows of the embedding; the tokenizer may have fewer ids."""
    folder: Path
    base: Path
    """Folder of the base an adapter belongs to, else the same; it has config.json."""


def load_model(
    folder: Path, *, device: torch.device | str = "cpu", compute_dtype: torch.dtype = torch.float32
) -> Loaded:
    """Read a model folder, a quantized one, or an adapter and its base, tensor by tensor onto `device`.

    Errors: as `read_operated` and `read_quantized`.
    """
    base = folder
    if is_quantized(folder):
        config, vocab, model = read_quantized(folder, device)
    else:
        found = read_operated(folder)
        config, vocab, model, base = found.config, found.vocab, found.build(device), found.base_folder
    model.compute_dtype = compute_dtype
    with_tokenizer = folder if (folder / "tokenizer.json").exists() else base
    tokenizer = Tokenizer.load(with_tokenizer) if (with_tokenizer / "tokenizer.json").exists() else None
    if tokenizer is not None and tokenizer.vocab_size > vocab:
        raise IntegrityError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size} ids, its model only {vocab} rows of embedding"
        )
    return Loaded(model, tokenizer, config, vocab, folder, base)
