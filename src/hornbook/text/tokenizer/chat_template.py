"""Chat templates: a conversation as token ids, by the template that came with a tokenizer.

A template is Jinja, as transformers reads it (`chat_template.jinja`, or `chat_template` in tokenizer_config.json), and
rendered in Jinja's sandbox. Special tokens count where the template spells them, never where a person does. What a
model learns to say is what the template has between `generation` tags or, where it has none, what each message of the
assistant adds to the text before it.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hornbook.errors import IntegrityError, UsageError
from hornbook.text.tokenizer.special_tokens import read_settings, token_name
from hornbook.text.tokenizer.tokenizer import Tokenizer

FILE = "chat_template.jinja"
OURS: dict[str, str] = tomllib.loads(Path(__file__).with_name("chat_templates.toml").read_text(encoding="utf-8"))
"""Templates by name."""
_BREAK, _BEGIN, _END = "\ufdd2", "\ufdd3", "\ufdd4"
"""Characters that no text has: within a special token that a message spells, and around what is learned."""
_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")
_LOOKS_SPECIAL = re.compile(r"<\|[^\s<>|]{1,40}\|>|<(?:start|end)_of_\w+>|</?s>")
"""Spellings in templates that are special tokens in every tokenizer that they were written for."""


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    tool_calls: Sequence[Any] = ()
    """What an assistant asks of tools, as the template wants it."""
    is_learned: bool = True
    """Whether a model learns it, where it is the assistant's."""


_PROBE = Message("user", "asked-of-it"), Message("assistant", "said-by-it")
"""What a template is tried on."""


class Rendered(NamedTuple):
    """A conversation as token ids."""

    tokens: list[int]
    is_answer: list[bool]
    """Of each token: an assistant says it, and it is to be learned."""


class ChatTemplate:
    """The template of a tokenizer."""

    def __init__(self, source: str, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
        """Raises IntegrityError where the source is no template."""
        self.source, self._tokenizer = source, tokenizer
        names = {name: token_name(settings.get(name)) for name in settings if name.endswith("_token")}
        self._names = {"bos_token": tokenizer.begin, "eos_token": tokenizer.end} | {k: v for k, v in names.items() if v}
        self._template = _compiled(source)
        specials = "|".join(map(re.escape, tokenizer.special_spellings))
        self._spelled = re.compile(f"(?=(?:{specials or '(?!)'}))(.)", re.DOTALL)

    def encode(self, messages: Sequence[Message], *, answer: bool = True) -> list[int]:
        """Token ids of a conversation; with `answer` an assistant's next turn is begun.

        Raises UsageError where the template refuses the messages (their order, a system message).
        """
        return self.encode_text(self.text(messages, answer=answer))

    def text(self, messages: Sequence[Message], *, answer: bool = True) -> str:
        """The text that `encode` gives the tokens of, for `encode_text`. Raises UsageError as it does."""
        return self._render(messages, answer=answer).replace(_BEGIN, "").replace(_END, "")

    def encode_text(self, text: str) -> list[int]:
        """Token ids of what `text` has made."""
        return self._tokenizer.encode_parts([(piece, True) for piece in text.split(_BREAK)])

    def is_longer(self, text: str, tokens: int) -> bool:
        """Whether what `text` has made has more tokens than so many, as far as its size tells it.

        Blanks do not count: a special token may swallow those beside it.
        """
        return self._tokenizer.is_longer("".join(text.replace(_BREAK, "").split()), tokens)

    def encode_answers(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Rendered:
        """Token ids of a whole conversation, and which of them are learned.

        UsageError where the template refuses the messages, or does not say which part of its text is an answer.
        """
        text = self._render(messages, answer=False, tools=tools)
        marked = self._by_tags(text, messages) if _GENERATION.search(self.source) else self._by_prefix(messages, tools)
        pieces = [(piece, learned) for part, learned in marked for piece in part.split(_BREAK)]
        tokens, spans = self._tokenizer.encode_spans([(piece, True) for piece, _ in pieces])
        return Rendered(tokens, [pieces[first][1] or pieces[last][1] for first, last in spans])

    def turn_end(self) -> int | None:
        """The special token that ends what an assistant says, if the template has one."""
        said = "hornbook"
        text = self._render([Message("user", "a"), Message("assistant", said)], answer=False)
        after = text.rpartition(said)[2].replace(_BEGIN, "").replace(_END, "")
        ids = self._tokenizer.encode_parts([(after, True)])
        return next((each for each in ids if each in self._tokenizer.special_ids), None)

    def require_tokens(self) -> None:
        """UsageError where the template spells special tokens that the tokenizer lacks, or leaves out what is said."""
        text = self._render(_PROBE, answer=False)
        if not all(each.content in text for each in _PROBE):
            raise UsageError(
                "the chat template does not write the text of messages, as those for messages of several parts do not: "
                'take one for plain text, or text.chat_template = "plain"'
            )
        spelled = dict.fromkeys(_LOOKS_SPECIAL.findall(text.replace(_BREAK, "")))
        missing = [each for each in spelled if len(self._tokenizer.encode_parts([(each, True)])) != 1]
        if missing:
            raise UsageError(
                f"the chat template spells {', '.join(missing)}, and the tokenizer has no such token: take the "
                'template that belongs to the tokenizer, or text.chat_template = "plain", which any tokenizer can write'
            )

    def _by_tags(self, text: str, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        """Parts of the text, and whether each is learned; `generation` tags stand around answers."""
        parts = re.split(f"[{_BEGIN}{_END}]", text)
        said = [each.is_learned for each in messages if each.role == "assistant"]
        if len(parts) == 2 * len(said) + 1:
            return [(part, number % 2 == 1 and said[number // 2]) for number, part in enumerate(parts)]
        if all(said) and self._tags_answers_alone:
            return [(part, number % 2 == 1) for number, part in enumerate(parts)]
        raise UsageError(
            f"the chat template has {len(parts) // 2} parts between `generation` tags for {len(said)} messages of the "
            "assistant: it must have one for each, or tag only what the assistant says where all of it is learned"
        )

    @cached_property
    def _tags_answers_alone(self) -> bool:
        """Whether `generation` tags stand around what an assistant says, in any number of parts, and nothing else."""
        text = self._render(_PROBE, answer=False)
        tagged = "".join(re.split(f"[{_BEGIN}{_END}]", text)[1::2])
        return _PROBE[0].content not in tagged and _PROBE[1].content in tagged

    def _by_prefix(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[tuple[str, bool]]:
        """The same without tags: an answer is what its message adds to the text that asks for it."""
        text = self._render(messages, answer=False, tools=tools)
        parts: list[tuple[str, bool]] = []
        place = 0
        for number, message in enumerate(messages):
            if message.role != "assistant":
                continue
            asked = self._render(messages[:number], answer=True, tools=tools)
            said = self._render(messages[: number + 1], answer=False, tools=tools)
            if not said.startswith(asked) or not text.startswith(said):
                raise UsageError(
                    "the chat template writes earlier messages otherwise once others follow, so it does not show what "
                    "an answer is: put `{% generation %}` and `{% endgeneration %}` around what the assistant says"
                )
            end = len(said.rstrip())  # what ends a turn is learned, and a line end behind it is not
            end = (
                end if end > len(asked) and said[:end].endswith(tuple(self._tokenizer.special_spellings)) else len(said)
            )
            parts += [(text[place : len(asked)], False), (text[len(asked) : end], message.is_learned)]
            place = end
        return [*parts, (text[place:], False)]

    def _render(self, messages: Sequence[Message], *, answer: bool, tools: Sequence[Any] | None = None) -> str:
        from jinja2 import TemplateError

        given = [self._given(each) for each in messages]
        names = self._names | {"tools": self._broken(tools) if tools else None}
        try:
            return self._template.render(messages=given, add_generation_prompt=answer, **names)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
            raise UsageError(f"the chat template refuses this conversation: {error}") from error

    def _given(self, message: Message) -> dict[str, Any]:
        """A message as templates know it."""
        given = {"role": message.role, "content": self._broken(message.content)}
        return given | ({"tool_calls": self._broken(list(message.tool_calls))} if message.tool_calls else {})

    def _broken(self, value: Any) -> Any:
        """The value with special tokens that it spells broken in two, so that none is meant."""
        if isinstance(value, str):
            return self._spelled.sub(lambda found: found[1] + _BREAK, _NONCHARACTERS.sub("\ufffd", value))
        if isinstance(value, dict):
            return {self._broken(key): self._broken(each) for key, each in value.items()}
        return [self._broken(each) for each in value] if isinstance(value, list | tuple) else value


def read_chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template beside the tokenizer.json of a folder; None where there is none. Raises IntegrityError."""
    source = read_source(folder)
    if source is None:
        return None
    try:
        return ChatTemplate(source, tokenizer, read_settings(folder))
    except IntegrityError as error:
        raise IntegrityError(f"{folder}: {error}") from error


def read_source(folder: Path) -> str | None:
    """The text of the chat template of a tokenizer's folder; None where there is none. Raises IntegrityError."""
    try:
        return (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        source: Any = read_settings(folder).get("chat_template")
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder / FILE} cannot be read: {error}") from error
    if isinstance(source, list):  # several by name, as older files have them
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


@cache
def _compiled(source: str) -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Puts characters that no text has around what an assistant says."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = _to_json  # Jinja's own escapes what is not ASCII
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        at = f", line {line}" if (line := getattr(error, "lineno", None)) else ""
        raise IntegrityError(f"the chat template is damaged{at}: {error}") from error
