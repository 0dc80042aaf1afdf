"""From the body of a request to what the engine is asked for: prompts as tokens, limits, ends of a text."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.model.storage.load import Loaded
from hornbook.serve.bodies import Body, ChatBody, CompletionBody
from hornbook.serve.http_errors import ApiError
from hornbook.serve.requests import Event, Request
from hornbook.serve.serving_engine import Closed, Engine, QueueFull
from hornbook.text.tokenizer.chat_template import Message, read_chat_template

Deliver = Callable[[tuple[int, Event] | None], None]
"""Takes (number of the prompt, event); None says that the client has left."""
RETRY_SECONDS = 2


@dataclass(frozen=True)
class Prompt:
    """What a text continues."""

    tokens: list[int]
    text: str
    """As it is echoed."""
    begun: bool
    """The first token is the delimiter, which the client did not write."""


class Service:
    """A model by its name, its engine, and what requests to it mean."""

    def __init__(self, loaded: Loaded, name: str, engine: Engine) -> None:
        self.name, self.engine, self.limits = name, engine, engine.limits
        self.tokenizer = loaded.require_tokenizer()
        self.created = int(time.time())
        self._template = read_chat_template(loaded.tokenizer_folder, self.tokenizer)
        self._stop, self._prefix = loaded.ends, loaded.prefix
        turn_end = None if self._template is None else self._template.turn_end()
        self._chat_stop = self._stop if turn_end is None else self._stop | {turn_end}

    def require_model(self, name: str) -> None:
        """Raise ApiError (404) for another model."""
        if name != self.name:
            raise ApiError(
                404,
                f"model: there is no model {name[:100]!a}, only {self.name!a}",
                param="model",
                code="model_not_found",
            )

    def read_prompts(self, body: CompletionBody) -> list[Prompt]:
        """The prompts of a completion. Raises ApiError."""
        self._require_room(body, len(body.prompts))  # before any is encoded: a body has room for 400,000 of them
        return [self._read_prompt(each) for each in body.prompts]

    def read_chat(self, body: ChatBody) -> list[Prompt]:
        """The one prompt of a chat. Raises ApiError."""
        if self._template is None:
            raise ApiError(
                400,
                f"messages: the model {self.name!a} has no chat template beside its tokenizer: use /v1/completions",
                param="messages",
                code="chat_template_missing",
            )
        roles = {"developer": "system"}  # the present name of what templates call system
        messages = [Message(roles.get(each.role, each.role), each.text) for each in body.messages]
        try:
            text = self._template.text(messages)
        except UsageError as error:
            raise ApiError(400, f"messages: {_ascii(str(error))}", param="messages") from error
        if self._template.is_longer(text, self.limits.context):
            raise self._too_long(text, "messages")
        return [Prompt(self._template.encode_text(text), "", begun=False)]

    def requests(self, body: Body, prompts: Sequence[Prompt], arrived: float, deliver: Deliver) -> list[Request]:
        """What the engine is asked for: one request for each prompt. Raises ApiError.

        arrived: by `time.monotonic`.
        """
        self._require_room(body, len(prompts))
        chat = isinstance(body, ChatBody)
        field = "messages" if chat else "prompt"
        return [
            Request(
                each.tokens,
                body.samplings(),
                self._max_tokens(body, each, field),
                (lambda event, number=number: deliver((number, event))),
                stop_ids=self._chat_stop if chat else self._stop,
                stop=body.stops,
                logprobs=_logprobs(body),
                score_prompt=isinstance(body, CompletionBody) and body.echo and body.logprobs is not None,
                bias=body.biases(self.tokenizer.vocab_size),
                deadline=arrived + self.limits.seconds,
            )
            for number, each in enumerate(prompts)
        ]

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests to the engine. Raises ApiError (503)."""
        try:
            self.engine.submit(*requests)
        except QueueFull as error:
            message = f"the server is busy: {self.limits.queue} texts are waiting"
            raise ApiError(503, message, code="queue_full", retry=RETRY_SECONDS) from error
        except Closed as error:
            raise ApiError(503, "the server is stopping", code="stopping", retry=RETRY_SECONDS) from error

    def _require_room(self, body: Body, prompts: int) -> None:
        """Raise ApiError (400) for more texts than one request may ask for."""
        most = min(self.limits.choices, self.limits.slots + self.limits.queue)
        if prompts * body.n > most:
            raise ApiError(400, f"n: {prompts} prompts times {body.n} texts are more than {most} at once", param="n")

    def _read_prompt(self, prompt: str | list[int]) -> Prompt:
        if isinstance(prompt, str):
            if self.tokenizer.is_longer(prompt, self.limits.context):  # to encode a megabyte takes a second
                raise self._too_long(prompt, "prompt")
            ids = [*self._prefix, *self.tokenizer.encode(prompt)] or [self.tokenizer.delimiter_id]
            return Prompt(ids, prompt, begun=ids[0] == self.tokenizer.delimiter_id)
        if (largest := max(prompt)) >= self.tokenizer.vocab_size:
            message = f"prompt: {str(largest)[:20]} is no token id: the tokenizer has {self.tokenizer.vocab_size}"
            raise ApiError(400, message, param="prompt")
        return Prompt(prompt, self.tokenizer.decode(prompt), begun=False)

    def _too_long(self, text: str, field: str) -> ApiError:
        """The refusal of a text that does not fit, whatever its tokens are."""
        message = (
            f"{len(text):,} characters of {field} are more than the context of {self.limits.context} tokens: shorten it"
        )
        return ApiError(400, f"{field}: {message}", param=field, code="context_length_exceeded")

    def _max_tokens(self, body: Body, prompt: Prompt, field: str) -> int:
        """How many tokens to generate; of a chat by default as many as fit. Raises ApiError."""
        room, given = self.limits.context - len(prompt.tokens), None
        if isinstance(body, CompletionBody):
            given = 16 if body.max_tokens is None else body.max_tokens
        elif isinstance(body, ChatBody):
            given = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
        wanted = max(room, 1) if given is None else given
        if wanted <= room:
            return wanted
        message = (
            f"{len(prompt.tokens)} tokens of {field} and {wanted} to generate are more than the context of "
            f"{self.limits.context}: {f'ask for {room} or fewer' if room > 0 else f'shorten the {field}'}"
        )
        field = "max_tokens" if room > 0 else field
        raise ApiError(400, f"{field}: {message}", param=field, code="context_length_exceeded")


def _logprobs(body: Body) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    return (body.top_logprobs or 0) if isinstance(body, ChatBody) and body.logprobs else None


def _ascii(text: str) -> str:
    return text[:300].encode("ascii", "backslashreplace").decode()
