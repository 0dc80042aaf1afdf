"""generation_config.json: what begins, ends and fills up texts, and how other programs sampled them."""

from pathlib import Path
from typing import Any

from hornbook.errors import HornbookError
from hornbook.files.json_files import read_json
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.tables.vocabulary_names import Json
from hornbook.text.tokenizer.chat_template import read_chat_template
from hornbook.text.tokenizer.special_tokens import template_prefix
from hornbook.text.tokenizer.tokenizer import Tokenizer

FILE = "generation_config.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_HISTORY = ("_from_model_config", "transformers_version")


def own_generation(folder: Path, config: ModelConfig, vocab: int, tokens: Json) -> Json:
    """The content for a model of ours whose tokenizer lies in `folder`, if it has one.

    A decoder's text ends with the end token, a document's delimiter, or the end of a turn in a chat. Rows of the
    embedding that are no token are never to be chosen.
    """
    if not (folder / "tokenizer.json").is_file() or config.kind == "encoder":
        return tokens
    tokenizer, found = Tokenizer.load(folder), dict(tokens)
    if rows := list(range(tokenizer.vocab_size, vocab)):
        found["suppress_tokens"] = rows
    if config.kind == "decoder":
        ends = dict.fromkeys((tokenizer.end_id, tokenizer.delimiter_id, _turn_end(folder, tokenizer)))
        numbers = [each for each in ends if each is not None]
        found["eos_token_id"] = numbers if len(numbers) > 1 else numbers[0]
        found["pad_token_id"] = tokenizer.end_id if tokens["pad_token_id"] is None else tokens["pad_token_id"]
    return found


def _turn_end(folder: Path, tokenizer: Tokenizer) -> int | None:
    try:
        template = read_chat_template(folder, tokenizer)
        return None if template is None else template.turn_end()
    except HornbookError:  # a template that cannot be read is refused where it is used
        return None


def foreign_generation(folder: Path, tokens: Json) -> Json:
    """The content for a model that another program made, as it was."""
    given = read_json(folder / FILE) if (folder / FILE).is_file() else {}
    return tokens | foreign_ids(folder) | {key: value for key, value in given.items() if key not in _HISTORY}


def foreign_ids(folder: Path) -> Json:
    """Ids of special tokens, one or a list, as config.json has them."""
    keys = read_json(folder / "config.json")
    return {key: keys[key] for key in _IDS if key in keys}


def is_foreign(folder: Path) -> bool:
    """Whether another program made the model of a folder, imported since or not."""
    keys = read_json(folder / "config.json")
    own = keys.get("hornbook")
    return not isinstance(own, dict) or bool(own.get("imported"))


def end_ids(folder: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that end a text, by generation_config.json; of a folder without one, the tokenizer's."""
    given: Any = read_json(folder / FILE).get("eos_token_id") if (folder / FILE).is_file() else None
    numbers = given if isinstance(given, list) else [given]
    found = frozenset(each for each in numbers if type(each) is int)
    return found or frozenset((tokenizer.end_id, tokenizer.delimiter_id))


def prompt_prefix(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids before a prompt: the delimiter in models of ours, in others what their tokenizer puts there."""
    return template_prefix(tokenizer.definition) if is_foreign(folder) else (tokenizer.delimiter_id,)
