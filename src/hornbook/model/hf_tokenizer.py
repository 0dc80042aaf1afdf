"""The tokenizer's files in a Hugging Face folder: copied as they are, completed where AutoTokenizer needs more."""

import shutil
from pathlib import Path
from typing import Any

from hornbook.model.safetensors_folder import read_json, regular_size, write_json
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_files import name_special_tokens

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""What says how a tokenizer is used: its delimiters, its template of chats."""
FILES = ("tokenizer.json", *SETTINGS, "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model")
"""What a tokenizer may consist of. hornbook itself reads tokenizer.json."""


def special_ids(tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """Ids of special tokens by their keys in config.json; null where they are not known.

    The begin-of-text id is the token that delimits documents: what a text is to be preceded by.
    """
    if tokenizer is None:
        return {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    ids = {"cls_token_id": tokenizer.special.cls, "sep_token_id": tokenizer.special.sep}
    return {
        "bos_token_id": tokenizer.delimiter_id,
        "eos_token_id": tokenizer.end_id,
        "pad_token_id": tokenizer.special.pad,
        **{key: number for key, number in ids.items() if number is not None},
    }


def copy_tokenizer(source: Path, folder: Path, length: int, *, types: bool = False) -> dict[str, int | None]:
    """Copy the tokenizer of `source`; returns its `special_ids`.

    `length`: positions of the model, written for AutoTokenizer if `source` has no tokenizer_config.json of its own.
    `types`: the model tells the two texts of a pair apart by token types, so AutoTokenizer must give them.
    """
    for name in FILES:
        path = source / name
        if path.exists():
            regular_size(path)
            shutil.copyfile(path, folder / name)
    tokenizer = Tokenizer.load(source)
    if not (source / "tokenizer_config.json").exists():
        write_json(folder / "tokenizer_config.json", _settings(tokenizer, length))
    if types:
        _ask_for_types(folder / "tokenizer_config.json")
    return special_ids(tokenizer)


def _ask_for_types(path: Path) -> None:
    """Transformers' own classes, such as BertTokenizer, know by themselves what their models read."""
    settings = read_json(path)
    if settings.get("tokenizer_class") == "PreTrainedTokenizerFast" and "model_input_names" not in settings:
        write_json(path, settings | {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]})


def _settings(tokenizer: Tokenizer, length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.begin,
        "eos_token": tokenizer.end,
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        **name_special_tokens(tokenizer),
    }
