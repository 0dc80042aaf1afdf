"""Bodies of requests as OpenAI's interface has them, and what is added to it: top_k, min_p, repetition_penalty.

A field that would change the answer and is not served is refused by its name; one that changes nothing (`IGNORED`, or
null, which means that the client left it out) is accepted.
"""

import json
import secrets
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hornbook.files.strict_json import InvalidJson, parse_json
from hornbook.model.generate.sampling import Sampling
from hornbook.serve.http_errors import ApiError

IGNORED = ("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
"""Fields that change nothing about an answer here."""
EMPTY: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "tool_calls": ([],),
    "annotations": ([],),
}
"""Values at which fields of requests and of their messages ask for nothing: clients of agents send them always.

`auto` chooses among no tools: tools themselves are refused."""
MOST_STOPS, MOST_STOP_CHARACTERS = 16, 256
FORMS = {
    "prompt": "must be a text, a list of token ids, or a list of these, and no list may be empty",
    "content": 'must be a text, or a list of parts {"type": "text", "text": ...}; images and audio are not served',
    "stop": "must be a text or a list of texts",
}
"""Form of the fields that may have one of several types."""
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class StreamOptions(BaseModel):
    """How an answer is streamed."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False
    """A last chunk says how many tokens were read and generated."""
    include_obfuscation: bool = False
    """Accepted; nothing is padded here."""


class Body(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    n: int = Field(1, ge=1)
    """Number of texts for each prompt."""
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """Added to logits, by token id."""
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.stops) > MOST_STOPS or any(not 0 < len(each) <= MOST_STOP_CHARACTERS for each in self.stops):
            raise ValueError(f"stop: at most {MOST_STOPS} strings of 1 to {MOST_STOP_CHARACTERS} characters")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed with stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a text."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def usage_at_end(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def samplings(self) -> list[Sampling]:
        """How each of the `n` texts is drawn; without a seed it is drawn by chance."""
        seed = secrets.randbits(63) if self.seed is None else self.seed % 2**63
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(self.top_k, 0),  # -1: all, as others write it
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
        }
        fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return [Sampling(**fields, seed=(seed + number) % 2**63) for number in range(self.n)]

    def biases(self, vocab: int) -> dict[int, float]:
        """`logit_bias` by token id, of a vocabulary of `vocab` ids."""
        found = {}
        for key, value in (self.logit_bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab):
                raise ApiError(400, f"logit_bias: {key[:20]!a} is no token id below {vocab}", param="logit_bias")
            found[int(key)] = value
        return found


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: str | TokenIds | Annotated[list[str | TokenIds], Field(min_length=1)]
    max_tokens: int | None = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    best_of: int | None = None
    suffix: None = None

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of: only {self.n} (n) is served, not {self.best_of}")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 is only allowed with echo: true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, of which there may be one or several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[each for each in self.prompt if isinstance(each, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None
    """Accepted; templates do not see it."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """An answer sent back as a turn has `refusal: null`, and with some clients `tool_calls: null` and others."""
        if not isinstance(given, dict):
            return given
        return _without_nulls({name: value for name, value in given.items() if value not in EMPTY.get(name, ())})

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ResponseFormat(BaseModel):
    """Form of the answer: text alone."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    """The present name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed with logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ValueError("max_tokens: give this or max_completion_tokens, not both")
        return self


B = TypeVar("B", bound=Body)


def parse_body(kind: type[B], data: bytes) -> B:
    """A request's body. Raises ApiError (400), naming the field."""
    try:
        found = parse_json(data)
    except InvalidJson as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(found, dict):
        raise ApiError(400, "the body is JSON, but not an object", code="invalid_json")
    for name, value in found.items():
        _require_unicode(name, value)
    found = {name: value for name, value in found.items() if name not in IGNORED and value not in EMPTY.get(name, ())}
    try:
        return kind.model_validate(_without_nulls(found))
    except ValidationError as error:
        raise _refusal(error) from error


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _require_unicode(name: str, value: Any) -> None:
    """JSON may spell half of a pair of surrogates, which is no character. Raises ApiError (400)."""
    try:
        json.dumps([name, value], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        shown = _ascii(name)
        raise ApiError(400, f"{shown}: its text is no Unicode (half of a surrogate pair)", param=shown) from error


def _ascii(name: Any) -> str:
    return str(name)[:60].encode("ascii", "backslashreplace").decode()


def _refusal(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = [_ascii(each) for each in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    if not place:  # a rule of several fields, whose message begins with the field
        return ApiError(400, message, param=message.partition(":")[0])
    if first["type"] == "extra_forbidden":
        message = "this server has no such field"
    elif (form := next((each for each in place if each in FORMS), None)) is not None and first["type"] != "missing":
        place, message = place[: place.index(form) + 1], FORMS[form]
    return ApiError(400, f"{'.'.join(place)}: {message}", param=place[0])
