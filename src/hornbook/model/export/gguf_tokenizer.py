"""A byte-level BPE tokenizer as GGUF metadata: the vocabulary as it is spelled, merges, and how text is split."""

from pathlib import Path
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.strict_json import parse_json
from hornbook.model.export.gguf import Value
from hornbook.model.hf.generation_config import FILE as GENERATION
from hornbook.model.hf.generation_config import end_ids, foreign_ids, is_foreign, prompt_prefix
from hornbook.text.tokenizer.bpe.tables import find_merges
from hornbook.text.tokenizer.special_tokens import read_settings
from hornbook.text.tokenizer.tokenizer import Tokenizer

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens."""
SPLITS = {0: "gpt-2", 1: "qwen2", 3: "dbrx"}
"""Digits that stay together (`bpe/styles.toml`) -> llama.cpp's name of the regex that splits text. `dbrx` is Llama 3's
without its rule that a word which is a token is never merged; `llama-bpe` has it."""


def tokenizer_metadata(folder: Path, vocab: int) -> dict[str, Value]:
    """Keys of a tokenizer and its chat template, for a model of `vocab` rows. Raises UsageError for other kinds.

    Where a model of another program lies beside it, that says what begins and ends its texts.
    """
    tokenizer = Tokenizer.load(folder)
    data: dict[str, Any] = parse_json(tokenizer.definition)
    model, added = data["model"], {each["id"]: each for each in data.get("added_tokens") or []}
    whole_words = bool(model.get("ignore_merges"))
    special = [each for each in added.values() if each["special"]]
    found = find_merges(data | {"model": model | {"ignore_merges": False}, "added_tokens": special})
    if found is None or found.digits not in SPLITS or (whole_words and found.digits != 3):
        raise UsageError(
            f"{folder}: --to gguf writes byte-level BPE that splits text as GPT-2, Llama 3 or Qwen 2 do, and this "
            f"tokenizer is another ({model.get('type')}): export it with --to hf"
        )
    spelled = {number: token for token, number in model["vocab"].items()}
    spelled |= {number: each["content"] for number, each in added.items()}
    kinds = [_kind(number, spelled, added) for number in range(vocab)]
    values: dict[str, Value] = {
        "model": "gpt2",
        "pre": "llama-bpe" if whole_words else SPLITS[found.digits],
        "tokens": [spelled.get(number, f"[UNUSED{number}]") for number in range(vocab)],
        "token_type": kinds,
        "merges": [each if isinstance(each, str) else " ".join(each) for each in model["merges"]],
        "bos_token_id": tokenizer.delimiter_id,
        "eos_token_id": tokenizer.end_id,
        "add_bos_token": True,
    }
    if (folder / "config.json").is_file() and is_foreign(folder):
        values |= _foreign_ids(folder, prompt_prefix(folder, tokenizer))
    ends = end_ids(folder, tokenizer) if (folder / GENERATION).is_file() else frozenset[int]()
    turn_ends = sorted(ends - {values["eos_token_id"]})
    if turn_ends:
        values["eot_token_id"] = turn_ends[-1]
    if (pad := tokenizer.special.pad) is not None:
        values["padding_token_id"] = pad
    found_metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value != []}
    template = _template(folder)
    return found_metadata if template is None else found_metadata | {"tokenizer.chat_template": template}


def _foreign_ids(folder: Path, prefix: tuple[int, ...]) -> dict[str, Value]:
    """Its own first and last tokens; of several ends the first, and no token before a prompt where it puts none."""
    found: dict[str, Value] = {"add_bos_token": bool(prefix)}
    for key, number in foreign_ids(folder).items():
        first = number[0] if isinstance(number, list) and number else number
        if type(first) is int and key != "pad_token_id":
            found[key] = first
    return found | ({"bos_token_id": prefix[0]} if prefix else {})


def _kind(number: int, spelled: dict[int, str], added: dict[int, dict[str, Any]]) -> int:
    if number in added:
        return CONTROL if added[number]["special"] else USER_DEFINED
    return NORMAL if number in spelled else UNUSED


def _template(folder: Path) -> str | None:
    """The text of the chat template, if there is one."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = read_settings(folder).get("chat_template")
    return found if isinstance(found, str) else None
