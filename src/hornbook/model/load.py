"""A model and its tokenizer from a checkpoint folder: the one way in for generate, eval and export."""

from dataclasses import dataclass
from pathlib import Path

import torch

from hornbook.errors import IntegrityError
from hornbook.model.build import build_model
from hornbook.model.config import ModelConfig
from hornbook.model.hf import read_hf
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
    """Read any folder that `read_hf` reads, tensor by tensor onto `device`. Errors: as `read_hf`."""
    config, vocab, stream = read_hf(folder)
    model = build_model(config, vocab, "meta").to_empty(device=device)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in stream:
            parameters.pop(name).copy_(tensor)
    assert not parameters, "read_hf gives every parameter"
    model.compute_dtype = compute_dtype
    tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else None
    if tokenizer is not None and tokenizer.vocab_size > vocab:
        raise IntegrityError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size} ids, its model only {vocab} rows of embedding"
        )
    return Loaded(model.eval(), tokenizer, config, vocab, folder)
