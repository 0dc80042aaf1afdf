"""A model and its tokenizer from a checkpoint folder: the one way in for generate, eval and export."""

from dataclasses import dataclass
from pathlib import Path

import torch

from hornbook.errors import IntegrityError
from hornbook.model.config import ModelConfig
from hornbook.model.surgery.folders import read_operated
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


def load_model(
    folder: Path, *, device: torch.device | str = "cpu", compute_dtype: torch.dtype = torch.float32
) -> Loaded:
    """Read a model folder, or an adapter and its base, tensor by tensor onto `device`. Errors: as `read_operated`."""
    found = read_operated(folder)
    vocab, model = found.vocab, found.build(device)
    model.compute_dtype = compute_dtype
    with_tokenizer = folder if (folder / "tokenizer.json").exists() else found.base_folder
    tokenizer = Tokenizer.load(with_tokenizer) if (with_tokenizer / "tokenizer.json").exists() else None
    if tokenizer is not None and tokenizer.vocab_size > vocab:
        raise IntegrityError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size} ids, its model only {vocab} rows of embedding"
        )
    return Loaded(model, tokenizer, found.config, vocab, folder)
