"""A model and its tokenizer from a checkpoint folder: the one way in for generate, eval and export."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.generation_config import end_ids, prompt_prefix
from hornbook.model.surgery.folders import read_operated
from hornbook.model.surgery.quantization.quantize import is_quantized, read_quantized
from hornbook.model.transformer import Transformer
from hornbook.text.tokenizer.tokenizer import Tokenizer


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

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer's files are, if there are any: an adapter may have none of its own."""
        return self.folder if (self.folder / "tokenizer.json").exists() else self.base

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises UsageError where the folder has none."""
        if self.tokenizer is None:
            raise UsageError(f"{self.folder}: it has no tokenizer.json, so it cannot read or write text")
        return self.tokenizer

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """Tokens before a prompt that a decoder continues."""
        return prompt_prefix(self.base, self.require_tokenizer())

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text of a decoder."""
        return end_ids(self.base, self.require_tokenizer())


def load_model(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.float32,
    average: bool = False,
) -> Loaded:
    """Read a model folder, a quantized one, or an adapter and its base, tensor by tensor onto `device`.

    Errors: as `read_operated` and `read_quantized`.
    """
    base = folder
    if is_quantized(folder):
        config, vocab, model = read_quantized(folder, device)
    else:
        found = read_operated(folder, average=average)
        config, vocab, model, base = found.config, found.vocab, found.build(device), found.base_folder
    model.compute_dtype = compute_dtype
    loaded = Loaded(model, None, config, vocab, folder, base)
    if not (loaded.tokenizer_folder / "tokenizer.json").exists():
        return loaded
    tokenizer = Tokenizer.load(loaded.tokenizer_folder)
    if tokenizer.vocab_size > vocab:
        raise IntegrityError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size} ids, its model only {vocab} rows of embedding"
        )
    return replace(loaded, tokenizer=tokenizer)
