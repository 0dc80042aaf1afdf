"""Chat templates: a conversation as token ids, by the template that came with a tokenizer.

A template is Jinja, as transformers reads it (`chat_template.jinja`, or `chat_template` in tokenizer_config.json), and
rendered in Jinja's sandbox. Special tokens count where the template spells them, never where a person does.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hornbook.errors import IntegrityError, UsageError
from hornbook.text.tokenizer.special_tokens import read_settings, token_name
from hornbook.text.tokenizer.tokenizer import Tokenizer

FILE = "chat_template.jinja"
_MARK = "\ufdd2{}\ufdd3"
"""Stands for a message while the template is rendered: characters that no text has."""
_MARKS = re.compile("\ufdd2([0-9]+)\ufdd3")
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""Tags by which transformers finds what an assistant said; they change nothing else."""


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


class ChatTemplate:
    """The template of a tokenizer."""

    def __init__(self, source: str, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
        """Raises IntegrityError where the source is no template."""
        self._tokenizer = tokenizer
        names = {name: token_name(settings.get(name)) for name in settings if name.endswith("_token")}
        self._names = {"bos_token": tokenizer.begin, "eos_token": tokenizer.end} | {k: v for k, v in names.items() if v}
        self._template = _compiled(source)

    def encode(self, messages: Sequence[Message], *, answer: bool = True) -> list[int]:
        """Token ids of a conversation; with `answer` an assistant's next turn is begun.

        Raises UsageError where the template refuses the messages (their order, a system message).
        """
        return self._tokenizer.encode_parts(self._parts(messages, answer=answer))

    def turn_end(self) -> int | None:
        """The special token that ends what an assistant says, if the template has one."""
        parts = self._parts([Message("user", "a"), Message("assistant", "b")], answer=False)
        after = [words for words, meant in parts if meant][-1]
        ids = self._tokenizer.encode_parts([(after, True)])
        return next((each for each in ids if each in self._tokenizer.special_ids), None)

    def _parts(self, messages: Sequence[Message], *, answer: bool) -> list[tuple[str, bool]]:
        """Pieces of the text, and whether special tokens are meant where they are spelled."""
        given = [{"role": each.role, "content": _MARK.format(number)} for number, each in enumerate(messages)]
        text = self._render(given, answer=answer)
        pieces = _MARKS.split(text)
        return [
            (piece, True) if number % 2 == 0 else (messages[int(piece)].content, False)
            for number, piece in enumerate(pieces)
        ]

    def _render(self, messages: list[dict[str, str]], *, answer: bool) -> str:
        from jinja2 import TemplateError

        try:
            return self._template.render(messages=messages, add_generation_prompt=answer, tools=None, **self._names)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
            raise UsageError(f"the chat template refuses this conversation: {error}") from error


def read_chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template beside the tokenizer.json of a folder; None where there is none. Raises IntegrityError."""
    settings = read_settings(folder)
    try:
        source: Any = (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        source = settings.get("chat_template")
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder / FILE} cannot be read: {error}") from error
    if isinstance(source, list):  # several by name, as older files have them
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    try:
        return ChatTemplate(source, tokenizer, settings)
    except IntegrityError as error:
        raise IntegrityError(f"{folder}: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _compiled(source: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = _to_json  # Jinja's own escapes what is not ASCII: the places of messages too
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    source = _GENERATION.sub(lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}", source)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise IntegrityError(f"its chat template is damaged: {error}") from error
