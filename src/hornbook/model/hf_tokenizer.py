"""The tokenizer's files in a Hugging Face folder: copied as they are, completed where AutoTokenizer needs more."""

import shutil
from pathlib import Path
from typing import Any

from hornbook.model.safetensors_folder import regular_size, write_json
from hornbook.text.tokenizer import Tokenizer

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
"""What a tokenizer may consist of. hornbook itself reads tokenizer.json."""


def copy_tokenizer(source: Path, folder: Path, length: int) -> tuple[int, int]:
    """Copy the tokenizer of `source`; returns the ids of (begin, end) of text.

    The begin-of-text id is the token that delimits documents: what a text is to be preceded by. `length`: positions of
    the model, written for AutoTokenizer if `source` has no tokenizer_config.json of its own.
    """
    for name in FILES:
        path = source / name
        if path.exists():
            regular_size(path)
            shutil.copyfile(path, folder / name)
    tokenizer = Tokenizer.load(source)
    if not (source / "tokenizer_config.json").exists():
        write_json(folder / "tokenizer_config.json", _settings(tokenizer, length))
    return tokenizer.delimiter_id, tokenizer.end_id


def _settings(tokenizer: Tokenizer, length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.begin,
        "eos_token": tokenizer.end,
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
