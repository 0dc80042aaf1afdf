"""The tokenizer's files in a Hugging Face folder: copied, and completed where AutoTokenizer needs more."""

import shutil
from pathlib import Path
from typing import Any

from hornbook.files.filesystem import regular_size
from hornbook.files.json_files import read_json, write_json
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.text.tokenizer.files import name_special_tokens
from hornbook.text.tokenizer.special_tokens import SAME_AS
from hornbook.text.tokenizer.tokenizer import Tokenizer

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""What says how a tokenizer is used: its delimiters, its template of chats."""
OTHER_FORMS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt", "vocab.txt")
"""Files of tokenizers that transformers makes a tokenizer.json of."""
_REPLACED = ("add_bos_token", "add_eos_token", SAME_AS)
"""Settings that a template of texts is written in place of."""
UNLIMITED = 1e20
"""Above this, transformers' model_max_length says that nobody knows it."""
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
        "pad_token_id": None if tokenizer.special.pad == tokenizer.end_id else tokenizer.special.pad,
        **{key: number for key, number in ids.items() if number is not None},
    }


def place_tokenizer(source: Path, folder: Path, config: ModelConfig, *, foreign: bool) -> dict[str, int | None]:
    """`copy_tokenizer` for an export, which other programs use as hornbook does; returns its `special_ids`.

    `foreign`: the model and its tokenizer come from another program, whose reading of texts stays.
    """
    labelled, kind = isinstance(config.head, LabelHeadConfig), config.kind
    ids = copy_tokenizer(source, folder, config.position.length, types=config.embedding.types > 1, kind=kind)
    if not foreign or (labelled and kind == "decoder"):
        frame_texts(folder, "encoder" if labelled and kind != "decoder" else kind)
    return ids


def copy_tokenizer(
    source: Path, folder: Path, length: int, *, types: bool = False, kind: str = "encoder"
) -> dict[str, int | None]:
    """Copy the tokenizer of `source`; returns its `special_ids`.

    `length`: positions of the model, where AutoTokenizer is to cut texts. `types`: the model tells the two texts of a
    pair apart by token types, so AutoTokenizer must give them, and to no other model. `kind`: that of the model. Texts
    of a decoder are padded on the left, with the end token where the tokenizer has no padding token.
    """
    for name in FILES:
        path = source / name
        if path.exists():
            regular_size(path)
            shutil.copyfile(path, folder / name)
    tokenizer = Tokenizer.load(source)
    if not (source / "tokenizer_config.json").exists():
        write_json(folder / "tokenizer_config.json", _settings(tokenizer, length))
    path = folder / "tokenizer_config.json"
    settings = read_json(path)
    if settings != (completed := _completed(settings, tokenizer, length, types=types, kind=kind)):
        write_json(path, completed)
    return special_ids(tokenizer)


def frame_texts(folder: Path, kind: str) -> None:
    """Let AutoTokenizer read texts as hornbook reads them for a model of this kind, delimiter and end tokens included.

    A decoder's text has no end token after it, because its label is that of the text's last token. Tokenizers of
    encoders and encoder-decoders keep their own template. Where they have none, a mask takes the blank before it.
    """
    tokenizer = Tokenizer.load(folder)
    data = read_json(folder / "tokenizer.json")
    old = data.get("post_processor") or {}
    processors = [each for each in old.get("processors", [old]) if each]
    byte_level = [each for each in processors if each.get("type") == "ByteLevel"]
    if kind != "decoder" and processors != byte_level:
        return
    for each in data.get("added_tokens") or []:
        each["lstrip"] = each["lstrip"] or (kind != "decoder" and each["id"] == tokenizer.special.mask)
    template = _template(tokenizer, kind)
    data["post_processor"] = {"type": "Sequence", "processors": [*byte_level, template]} if byte_level else template
    write_json(folder / "tokenizer.json", data)
    path = folder / "tokenizer_config.json"
    settings = {key: value for key, value in read_json(path).items() if key not in _REPLACED}
    write_json(path, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})
    same = {Tokenizer.load(folder).digest: tokenizer.digest}  # text made with the one is text for the other
    write_json(path, read_json(path) | {SAME_AS: same})


def _template(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    def ends(count: int, text: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": tokenizer.end, "type_id": text}}] * count

    delimited, source = tokenizer.delimiter_id != tokenizer.end_id, kind == "encoder_decoder"
    first = [{"SpecialToken": {"id": tokenizer.begin, "type_id": 0}}] * (delimited or not source)
    first.append({"Sequence": {"id": "A", "type_id": 0}})
    second = [*ends(tokenizer.ends_between, 0), {"Sequence": {"id": "B", "type_id": 1}}]
    last = source or (delimited and kind == "encoder")
    ids = {tokenizer.begin: tokenizer.delimiter_id, tokenizer.end: tokenizer.end_id}
    known = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ids.items()}
    return {
        "type": "TemplateProcessing",
        "single": first + ends(last, 0),
        "pair": [*first, *second, *ends(last, 1)],
        "special_tokens": known,
    }


def _completed(
    settings: dict[str, Any], tokenizer: Tokenizer, length: int, *, types: bool, kind: str
) -> dict[str, Any]:
    """Transformers' own classes, such as BertTokenizer, know by themselves what their models read."""
    settings = dict(settings)
    if settings.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        settings["model_input_names"] = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
        if not isinstance(given := settings.get("model_max_length"), int | float) or given > UNLIMITED:
            settings["model_max_length"] = length
    if kind == "decoder" and tokenizer.special.pad is None:
        settings |= {"pad_token": tokenizer.end, "padding_side": settings.get("padding_side", "left")}
    if kind != "encoder" and tokenizer.unknown_id is None and settings.get("unk_token") is None:
        settings["unk_token"] = tokenizer.end  # as GPT-2's and GPT-NeoX's: ctranslate2 loads no model without a name
    return settings


def _settings(tokenizer: Tokenizer, length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.begin,
        "eos_token": tokenizer.end,
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        **name_special_tokens(tokenizer),
    }
