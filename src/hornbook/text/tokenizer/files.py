"""The files of a tokenizer in a folder: tokenizer.json, and what transformers' AutoTokenizer wants beside it."""

import json
from pathlib import Path
from typing import Any

from hornbook.files.durable import write_atomic
from hornbook.text.tokenizer.tokenizer import Tokenizer

_SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    "model_max_length": 10**30,
}


def save_tokenizer(tokenizer: Tokenizer, folder: Path, settings: dict[str, Any] | None = None) -> None:
    """Write tokenizer.json, and the two files by which transformers' AutoTokenizer knows its special tokens.

    `settings`: the tokenizer_config.json it came with; its delimiters are set to those in use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, Any] = {"eos_token": tokenizer.end}
    if tokenizer.delimiter_id != tokenizer.end_id or not settings:
        names["bos_token"] = tokenizer.begin
    if not settings:
        names |= name_special_tokens(tokenizer)
    for name, content in (("special_tokens_map", names), ("tokenizer_config", {**(settings or _SETTINGS), **names})):
        write_atomic(folder / f"{name}.json", json.dumps(content, indent=1) + "\n")
    write_atomic(folder / "tokenizer.json", tokenizer.definition)


def name_special_tokens(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tokenizer_config.json calls the special tokens, the delimiters aside: each role that there is."""
    special = tokenizer.special
    roles = {
        "unk": tokenizer.unknown_id,
        "pad": special.pad,
        "mask": special.mask,
        "cls": special.cls,
        "sep": special.sep,
    }
    names: dict[str, Any] = {
        f"{role}_token": tokenizer.spell(number) for role, number in roles.items() if number is not None
    }
    others = [*special.sentinels, special.prefix, special.suffix, special.middle, *special.modes.values()]
    spelled = [tokenizer.spell(number) for number in others if number is not None]
    return names | ({"additional_special_tokens": spelled} if spelled else {})
