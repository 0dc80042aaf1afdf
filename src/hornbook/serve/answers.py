"""Answers in the form of OpenAI's interface: of a text completion, and of a chat."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from hornbook.serve.requests import ScoredToken
from hornbook.text.tokenizer.tokenizer import Tokenizer


class Answer:
    """The head of an answer, which all chunks of a stream share."""

    prefix, whole, chunk = "", "", ""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.id, self.created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())
        self._model, self._tokenizer = model, tokenizer

    def complete(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole answer."""
        return self._head(self.whole) | {"choices": choices, "usage": usage}

    def part(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        """One chunk of a stream."""
        return self._head(self.chunk) | {"choices": choices} | ({} if usage is None else {"usage": usage})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self._model}

    def _spell(self, token: int) -> tuple[str, list[int] | None]:
        """Text and bytes of a token; part of a character is written `bytes:\\xe2\\x82`."""
        found = self._tokenizer.bytes_of(token)
        if found is None:
            return self._tokenizer.decode([token]), None
        try:
            return found.decode(), list(found)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found), list(found)


class CompletionAnswer(Answer):
    """`text_completion`."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def choice(
        self, number: int, text: str, scores: Sequence[ScoredToken] | None, reason: str | None
    ) -> dict[str, Any]:
        """A choice, or a piece of one. scores: None: not asked for."""
        logprobs = None if scores is None else self._logprobs(scores)
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        scores = [each.score for each in tokens]
        return {
            "tokens": [self._spell(each.token)[0] for each in scores],
            "token_logprobs": [each.log_probability for each in scores],
            "top_logprobs": [
                None if each.log_probability is None else {self._spell(token)[0]: score for token, score in each.top}
                for each in scores
            ],
            "text_offset": [each.start for each in tokens],
        }


class ChatAnswer(Answer):
    """`chat.completion`."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(
        self, number: int, text: str, scores: Sequence[ScoredToken] | None, reason: str | None
    ) -> dict[str, Any]:
        """A whole choice."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs(scores),
            "finish_reason": reason,
        }

    def delta(
        self, number: int, delta: dict[str, Any], scores: Sequence[ScoredToken] | None, reason: str | None
    ) -> dict[str, Any]:
        """A piece of a choice."""
        return {
            "index": number,
            "delta": delta,
            "logprobs": self._logprobs(scores),
            "finish_reason": reason,
        }

    def _logprobs(self, scores: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
        if scores is None:
            return None
        content = [
            self._scored(each.token, each.log_probability)
            | {"top_logprobs": [self._scored(token, score) for token, score in each.top]}
            for _, each in scores
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token: int, score: float | None) -> dict[str, Any]:
        text, found = self._spell(token)
        return {"token": text, "logprob": score, "bytes": found}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """How many tokens were read and generated."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
