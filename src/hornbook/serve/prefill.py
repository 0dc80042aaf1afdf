"""Prompts on their way into the cache: several short ones in one pass of the model, a long one in parts.

Prompts that are read together lie behind one another in one row, as documents do in training, so nothing is padded and
none sees another. A model with recurrent layers, whose states end with the row, reads each alone.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.generate.sampling import TokenScore, score_tokens
from hornbook.model.layers.transfer import to_device
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.model.transformer import Transformer
from hornbook.serve.requests import Event, PromptScores, Request
from hornbook.serve.served_text import Text, without_padding
from hornbook.text.tokenizer.tokenizer import Tokenizer


class Prefill:
    """A prompt that is being read, and the texts that continue it."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request, self.read = request, 0
        self.texts = deque(Text(request, number, tokenizer) for number in range(len(request.samplings)))
        """Those that have no slot yet."""
        self.cache = KVCache(1)
        self.logits: Tensor | None = None
        """[1, vocab] after the whole prompt."""
        self.scores: list[TokenScore] = []

    def tell(self) -> list[tuple[Request, Event]]:
        """Once it is read: scores of the prompt, where they are wanted, and the ends of texts of no tokens."""
        if self.logits is None:
            return []
        found: list[Event] = [PromptScores(tuple(self.scores))] if self.request.score_prompt else []
        self.request.score_prompt = False
        if self.request.max_tokens == 0:
            found += [event for each in self.texts for event in each.end()]
            self.texts.clear()
        return [(self.request, each) for each in found]


class PromptReader:
    """Reads prompts with a model, at most `part` tokens in a pass."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, part: int) -> None:
        assert model.head is not None
        self._model, self._head, self._vocab, self._part = model, model.head, tokenizer.vocab_size, part
        self._device, self._ahead = next(model.parameters()).device, prompt_length(model)
        self._together: bool | None = None

    def position_bytes(self) -> int:
        """Bytes that the cache holds of one token."""
        parts = [part for pair in self._probe().held().values() for part in pair]
        return sum(part.shape[1] * part.shape[3] * part.element_size() for part in parts)

    def fits(self, prompts: Sequence[Prefill], request: Request, budget: int) -> bool:
        """Whether the prompt of a request may be read in one pass of at most `budget` tokens with these."""
        if not prompts:
            return True
        if self._together is None:
            self._together = not self._probe().states()
        wanted = [request, *(each.request for each in prompts)]
        return self._together and sum(len(each.prompt) for each in wanted) <= min(budget, self._part)

    def read(self, prompts: Sequence[Prefill]) -> int:
        """Read several prompts whole, or of one alone the next part; returns the number of tokens.

        Parts begin at multiples of `part`, so that they are the same whatever else is read in a step.
        """
        if len(prompts) > 1:
            return self._read_together(prompts)
        (prompt,) = prompts
        if prompt.read == 0:
            prompt.cache = KVCache(len(prompt.request.prompt) + self._ahead)
        part = prompt.request.prompt[prompt.read :][: self._part]
        hidden, _ = self._model(self._row(part), cache=prompt.cache)
        self._take(prompt, hidden[0])
        return len(part)

    def _read_together(self, prompts: Sequence[Prefill]) -> int:
        rows = [each.request.prompt for each in prompts]
        sizes = [len(row) for row in rows]
        held = [self._ahead + size for size in sizes]
        cache = KVCache(sum(held))
        hidden, _ = self._model(self._row([token for row in rows for token in row]), lengths=[sizes], cache=cache)
        parts = zip(prompts, hidden[0].split(sizes), cache.divided(held), strict=True)
        for prompt, states, prompt.cache in parts:
            self._take(prompt, states)
        return sum(sizes)

    def _take(self, prompt: Prefill, hidden: Tensor) -> None:
        """Count what was read by its hidden states [tokens, width]; scores and logits of it."""
        request, start = prompt.request, prompt.read
        prompt.read += len(hidden)
        following = request.prompt[start + 1 : prompt.read + 1]
        if request.score_prompt and following:
            logits = self._logits(hidden[: len(following)])
            prompt.scores += score_tokens(logits, following, [request.logprobs or 0] * len(following))
        if prompt.read == len(request.prompt):
            prompt.logits = self._logits(hidden[-1:])

    def _logits(self, hidden: Tensor) -> Tensor:
        return without_padding(self._head.logits(hidden), self._vocab)

    def _row(self, tokens: Sequence[int]) -> Tensor:
        return to_device(torch.tensor([tokens]), self._device)

    def _probe(self) -> KVCache:
        """What a cache holds after one token."""
        cache = KVCache(1)
        with torch.no_grad():
            self._model(self._row([0]), cache=cache)
        return cache
