"""The tokenizer's files in a Hugging Face folder: copied as they are, completed where AutoTokenizer needs more."""

import shutil
from pathlib import Path
from typing import Any

from hornbook.errors import IntegrityError
from hornbook.model.safetensors_folder import read_json, regular_size, write_json

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
    from hornbook.text.tokenizer import Tokenizer

    for name in FILES:
        path = source / name
        if path.exists():
            regular_size(path)
            shutil.copyfile(path, folder / name)
    tokenizer = Tokenizer.load(source)
    if not (source / "tokenizer_config.json").exists():
        names = _special_tokens(source / "tokenizer.json")
        write_json(folder / "tokenizer_config.json", _settings(names, tokenizer.delimiter_id, tokenizer.end_id, length))
    return tokenizer.delimiter_id, tokenizer.end_id


def _special_tokens(path: Path) -> dict[int, str]:
    try:
        return {int(each["id"]): str(each["content"]) for each in read_json(path).get("added_tokens", [])}
    except (TypeError, KeyError) as error:
        raise IntegrityError(f"{path}: damaged added_tokens") from error


def _settings(names: dict[int, str], begin: int, end: int, length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names.get(begin),
        "eos_token": names.get(end),
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
