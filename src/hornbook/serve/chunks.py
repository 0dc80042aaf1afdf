"""From the events of a request's texts to its answer: whole, or chunk by chunk."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from hornbook.model.generate.sampling import TokenScore
from hornbook.model.generate.text_stream import TextStream
from hornbook.serve.answers import ChatAnswer, CompletionAnswer, usage
from hornbook.serve.bodies import ChatBody, CompletionBody
from hornbook.serve.requests import Event, Finished, Piece, PromptScores, ScoredToken
from hornbook.serve.service import Prompt, Service

Events = AsyncIterator[tuple[int, Event]]


class _Choice:
    """What has come of one text."""

    def __init__(self) -> None:
        self.text = ""
        self.scores: list[ScoredToken] = []
        self.prompt_scores: tuple[TokenScore, ...] = ()
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
                    choice.prompt_scores = event.scores
        return found

    def _usage(self, tokens: int) -> dict[str, int]:
        return usage(self._prompt_tokens, tokens)


class CompletionChunks(Chunks):
    """Answers to /v1/completions."""

    def __init__(self, service: Service, body: CompletionBody, prompts: Sequence[Prompt]) -> None:
        super().__init__(body, prompts)
        self._tokenizer = service.tokenizer
        self._answer = CompletionAnswer(service.name, service.tokenizer)
        self._scored, self._echo, self._prompts = body.logprobs is not None, body.echo, prompts

    async def collect(self, events: Events) -> dict[str, Any]:
        """The whole answer."""
        found = await self._gather(events, self._n * len(self._prompts))
        choices = []
        for number, each in enumerate(found):
            prompt, text, scores = self._prompts[number // self._n], each.text, each.scores
            if self._echo:
                text = prompt.text + text
                scores = [*self._prompt_scores(prompt, each.prompt_scores), *self._behind(prompt, scores)]
            choices.append(self._answer.choice(number, text, scores if self._scored else None, each.reason))
        return self._answer.complete(choices, self._usage(sum(each.tokens for each in found)))

    async def stream(self, events: Events) -> AsyncIterator[dict[str, Any]]:
        """Chunks; an echoed prompt is the first one of each choice."""
        tokens, begun = 0, set[int]()
        async for number, event in events:
            prompt = self._prompts[number]
            first = number * self._n
            if self._echo and number not in begun:
                begun.add(number)
                given = self._prompt_scores(prompt, event.scores if isinstance(event, PromptScores) else ())
                for at in range(first, first + self._n):
                    yield self._part(at, prompt.text, given if self._scored else None, None)
            if isinstance(event, Piece):
                scores = self._behind(prompt, event.scores) if self._echo else event.scores
                yield self._part(first + event.choice, event.text, scores if self._scored else None, None)
            elif isinstance(event, Finished):
                tokens += event.tokens
                yield self._part(first + event.choice, "", None, event.reason)
        if self._usage_at_end:
            yield self._answer.part([], self._usage(tokens))

    def _part(self, number: int, text: str, scores: Sequence[ScoredToken] | None, reason: str | None) -> dict[str, Any]:
        return self._answer.part([self._answer.choice(number, text, scores, reason)])

    def _behind(self, prompt: Prompt, scores: Sequence[ScoredToken]) -> list[ScoredToken]:
        """Tokens of a text behind its echoed prompt."""
        return [ScoredToken(len(prompt.text) + start, score) for start, score in scores]

    def _prompt_scores(self, prompt: Prompt, scores: Sequence[TokenScore]) -> list[ScoredToken]:
        """Tokens of an echoed prompt; the first has no probability, and is not shown if it is the delimiter."""
        if not self._scored:
            return []
        before, scores = prompt.tokens[:1], list(scores)
        if not prompt.begun:
            before, scores = [], [TokenScore(prompt.tokens[0], None, ()), *scores]
        text, start, found = TextStream(self._tokenizer, before), 0, []
        for each in scores:
            found.append(ScoredToken(start, each))
            start += len(text.push(each.token))
        return found


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
            self._answer.choice(number, each.text, each.scores if self._scored else None, each.reason)
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
                yield self._part(event.choice, {"content": event.text}, event.scores if self._scored else None, None)
            elif isinstance(event, Finished):
                tokens += event.tokens
                yield self._part(event.choice, {}, None, event.reason)
        if self._usage_at_end:
            yield self._answer.part([], self._usage(tokens))

    def _part(
        self, number: int, delta: dict[str, Any], scores: Sequence[ScoredToken] | None, reason: str | None
    ) -> dict[str, Any]:
        return self._answer.part([self._answer.delta(number, delta, scores, reason)])
