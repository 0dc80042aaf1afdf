"""From the events of a request's texts to its answer: whole, or chunk by chunk."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from hornbook.model.generate.sampling import TokenScore
from hornbook.serve.answers import ChatAnswer, CompletionAnswer, usage
from hornbook.serve.bodies import ChatBody, CompletionBody
from hornbook.serve.requests import Event, Finished, Piece, PromptScores
from hornbook.serve.service import Prompt, Service

Events = AsyncIterator[tuple[int, Event]]


class _Choice:
    """What has come of one text."""

    def __init__(self) -> None:
        self.text = ""
        self.scores: list[TokenScore | int] = []
        self.reason: str | None = None
        self.tokens = 0


class Chunks:
    """Common to completions and chats."""

    def __init__(self, body: CompletionBody | ChatBody, prompts: Sequence[Prompt]) -> None:
        self._n, self._usage_at_end = body.n, body.usage_at_end
        self._prompt_tokens = sum(len(each.tokens) for each in prompts)

    async def _gather(self, events: Events, count: int) -> list[_Choice]:
        """All texts to their ends."""
        found = [_Choice() for _ in range(count)]
        async for number, event in events:
            if isinstance(event, Piece):
                choice = found[number * self._n + event.choice]
                choice.text += event.text
                choice.scores += event.scores
            elif isinstance(event, Finished):
                choice = found[number * self._n + event.choice]
                choice.reason, choice.tokens = event.reason, event.tokens
            elif isinstance(event, PromptScores):
                for choice in found[number * self._n : (number + 1) * self._n]:
                    choice.scores += event.scores
        return found

    def _usage(self, tokens: int) -> dict[str, int]:
        return usage(self._prompt_tokens, tokens)


class CompletionChunks(Chunks):
    """Answers to /v1/completions."""

    def __init__(self, service: Service, body: CompletionBody, prompts: Sequence[Prompt]) -> None:
        super().__init__(body, prompts)
        self._answer = CompletionAnswer(service.name, service.tokenizer)
        self._scored, self._echo, self._prompts = body.logprobs is not None, body.echo, prompts

    async def collect(self, events: Events) -> dict[str, Any]:
        """The whole answer."""
        found = await self._gather(events, self._n * len(self._prompts))
        choices = []
        for number, each in enumerate(found):
            prompt = self._prompts[number // self._n]
            text = prompt.text + each.text if self._echo else each.text
            choices.append(self._answer.choice(number, text, self._scores(prompt, each.scores), each.reason))
        return self._answer.complete(choices, self._usage(sum(each.tokens for each in found)))

    async def stream(self, events: Events) -> AsyncIterator[dict[str, Any]]:
        """Chunks; an echoed prompt is the first one of each choice."""
        tokens, offsets = 0, [0] * (self._n * len(self._prompts))
        begun: set[int] = set()
        async for number, event in events:
            prompt = self._prompts[number]
            firsts = range(number * self._n, (number + 1) * self._n)
            if self._echo and number not in begun:
                begun.add(number)
                given = event.scores if isinstance(event, PromptScores) else ()
                for at in firsts:
                    offsets[at] = len(prompt.text)
                    yield self._part(at, prompt.text, self._scores(prompt, given), None, 0)
            if isinstance(event, Piece):
                at = firsts[event.choice]
                yield self._part(at, event.text, event.scores if self._scored else None, None, offsets[at])
                offsets[at] += len(event.text)
            elif isinstance(event, Finished):
                tokens += event.tokens
                yield self._part(firsts[event.choice], "", None, event.reason, 0)
        if self._usage_at_end:
            yield self._answer.part([], self._usage(tokens))

    def _part(
        self, number: int, text: str, scores: Sequence[TokenScore | int] | None, reason: str | None, offset: int
    ) -> dict[str, Any]:
        return self._answer.part([self._answer.choice(number, text, scores, reason, offset)])

    def _scores(self, prompt: Prompt, scores: Sequence[TokenScore | int]) -> Sequence[TokenScore | int] | None:
        """With the first token of an echoed prompt, which has no probability, unless it is the delimiter."""
        if not self._scored:
            return None
        return [prompt.tokens[0], *scores] if self._echo and not prompt.begun else scores


class ChatChunks(Chunks):
    """Answers to /v1/chat/completions."""

    def __init__(self, service: Service, body: ChatBody, prompts: Sequence[Prompt]) -> None:
        super().__init__(body, prompts)
        self._answer = ChatAnswer(service.name, service.tokenizer)
        self._scored = bool(body.logprobs)

    async def collect(self, events: Events) -> dict[str, Any]:
        """The whole answer."""
        found = await self._gather(events, self._n)
        choices = [
            self._answer.choice(number, each.text, self._scores(each.scores), each.reason)
            for number, each in enumerate(found)
        ]
        return self._answer.complete(choices, self._usage(sum(each.tokens for each in found)))

    async def stream(self, events: Events) -> AsyncIterator[dict[str, Any]]:
        """Chunks; the first of each choice says who speaks."""
        tokens, begun = 0, False
        async for _, event in events:
            if not begun:
                begun = True
                for number in range(self._n):
                    yield self._part(number, {"role": "assistant", "content": ""}, None, None)
            if isinstance(event, Piece):
                yield self._part(event.choice, {"content": event.text}, self._scores(event.scores), None)
            elif isinstance(event, Finished):
                tokens += event.tokens
                yield self._part(event.choice, {}, None, event.reason)
        if self._usage_at_end:
            yield self._answer.part([], self._usage(tokens))

    def _part(
        self, number: int, delta: dict[str, Any], scores: Sequence[TokenScore] | None, reason: str | None
    ) -> dict[str, Any]:
        return self._answer.part([self._answer.delta(number, delta, scores, reason)])

    def _scores(self, scores: Sequence[TokenScore | int]) -> list[TokenScore] | None:
        return [each for each in scores if isinstance(each, TokenScore)] if self._scored else None
