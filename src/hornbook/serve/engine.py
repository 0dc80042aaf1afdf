"""Continuous batching: one thread that generates all texts together, which join and leave between its steps.

A step reads at most `Limits.prefill` tokens of prompts, alone and in order of arrival, then adds one token to every
text that is being generated. Each text has a row of the `BatchCache`; prompts are read into a cache of their own first.
So a text depends on its own prompt, sampling and seed, never on what is generated beside it: rows do not mix, and the
parts in which prompts are read are counted from their beginning. (Matrix products of another number of rows may round
otherwise, by the last bits of float32.)
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hornbook.model.attention.batch_cache import BatchCache
from hornbook.model.attention.cache import KVCache
from hornbook.model.generate.sampling import TokenScore, score_token
from hornbook.model.storage.load import Loaded
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.serve.limits import Limits
from hornbook.serve.requests import Event, Failed, PromptScores, Request
from hornbook.serve.text import Text, best_tokens, without_padding

Publish = Callable[[list[tuple[Request, Event]]], None]


class QueueFull(Exception):
    """There are as many texts waiting as may wait."""


class Closed(Exception):
    """The engine takes no more requests."""


class _Prefill:
    """A prompt that is being read."""

    def __init__(self, request: Request, texts: list[Text], capacity: int) -> None:
        self.request, self.texts = request, texts
        self.cache, self.read = KVCache(capacity), 0
        self.logits: Tensor | None = None
        """[1, vocab] after the whole prompt."""
        self.scores: list[TokenScore] = []


class Engine:
    """Generates texts in a thread of its own, from `start` to `close`."""

    def __init__(self, loaded: Loaded, limits: Limits, publish: Publish | None = None) -> None:
        assert loaded.tokenizer is not None
        self._model, self._tokenizer, self.limits = loaded.model, loaded.tokenizer, limits
        self._device = next(loaded.model.parameters()).device
        self.publish: Publish = publish or _deliver
        """Called with the events of a step, in the engine's thread."""
        self._ahead = prompt_length(loaded.model)
        self._cache = BatchCache(limits.slots, limits.context + self._ahead)
        self._running: list[Text] = []
        """The text of each row of the cache."""
        self._prefill: _Prefill | None = None
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.steps = 0

    def cache_bytes(self) -> int:
        """Bytes of the cache once every slot is full, by what it holds of one token."""
        cache = KVCache(1)
        with torch.no_grad():
            self._model(torch.zeros(1, 1, dtype=torch.int64, device=self._device), cache=cache)
        parts = [part for pair in cache.held().values() for part in pair]
        position = sum(part.shape[1] * part.shape[3] * part.element_size() for part in parts)
        return position * self.limits.slots * (self.limits.context + self._ahead)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, *requests: Request) -> None:
        """Take requests on, all or none. Raises QueueFull, Closed."""
        count = sum(len(each.samplings) for each in requests)
        with self._changed:
            if self._closing:
                raise Closed
            if self.running + self.waiting + count > self.limits.slots + self.limits.queue:
                raise QueueFull
            self._waiting.extend(requests)
            self._changed.notify()

    def cancel(self, *requests: Request) -> None:
        """Nobody waits for these any more: their slots are free at the next step."""
        with self._changed:
            for each in requests:
                each.cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """End what is under way, without its results, and the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    @property
    def running(self) -> int:
        """Texts that have a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Texts that wait for a slot."""
        with self._changed:
            reading = 0 if self._prefill is None else len(self._prefill.texts)
            return reading + sum(len(each.samplings) for each in self._waiting)

    # ---- The engine's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._is_busy)
                if self._closing:
                    break
            self._guarded_step()
        self._fail(Failed(503, "the server is stopping"))

    @property
    def _is_busy(self) -> bool:
        return bool(self._waiting or self._running or self._prefill)

    def _guarded_step(self) -> None:
        """A step; a failure ends what was under way with an error, and the engine goes on with the next request."""
        try:
            with torch.no_grad():
                events = self._step()
        except Exception as error:  # noqa: BLE001 - whatever a request provokes, the others are served
            traceback.print_exc()
            self._fail(Failed(500, f"the model failed: {type(error).__name__}"))
            self._cache = BatchCache(self._cache.rows, self.limits.context + self._ahead)
            return
        self.publish(events)

    def _fail(self, failure: Failed) -> None:
        with self._changed:
            texts = [*self._running, *(() if self._prefill is None else self._prefill.texts)]
            requests = {*(each.request for each in texts), *self._waiting}
            self._running, self._prefill = [], None
            self._waiting.clear()
        self.publish([(each, failure) for each in requests])

    def _step(self) -> list[tuple[Request, Event]]:
        events = self._drop()
        budget = self.limits.prefill
        while budget > 0 and (prefill := self._next_prompt()) is not None:
            budget -= self._read(prefill, events)
        self._decode(events)
        self.steps += 1
        return events

    def _drop(self) -> list[tuple[Request, Event]]:
        """Let go of what is cancelled or late."""
        late = Failed(503, f"the request took longer than {self.limits.seconds:g} seconds")
        gone: dict[Request, None] = {}
        for row in reversed(range(len(self._running))):
            if _is_over(request := self._running[row].request):
                gone[request] = None
                self._leave(row)
        if self._prefill is not None and _is_over(self._prefill.request):
            gone[self._prefill.request] = None
            self._prefill = None
        with self._changed:
            over = [each for each in self._waiting if _is_over(each)]
            for each in over:
                self._waiting.remove(each)
        return [(each, late) for each in (*gone, *over) if not each.cancelled]

    def _next_prompt(self) -> _Prefill | None:
        """The prompt to read, if there is one and a slot for its text."""
        if len(self._running) == self.limits.slots:
            return None
        with self._changed:
            if self._prefill is None and self._waiting:
                request = self._waiting.popleft()
                texts = [Text(request, number, self._tokenizer) for number in range(len(request.samplings))]
                self._prefill = _Prefill(request, texts, len(request.prompt) + self._ahead)
        return self._prefill

    def _read(self, prefill: _Prefill, events: list[tuple[Request, Event]]) -> int:
        """Read a part of the prompt, or give its texts slots once it is read; returns what it costs of the budget.

        Parts begin at multiples of `Limits.prefill`, so that they are the same whatever else is read in a step.
        """
        cost = 1
        if prefill.logits is None:
            part = prefill.request.prompt[prefill.read :][: self.limits.prefill]
            self._read_part(prefill, part)
            cost = len(part)
        if prefill.logits is not None:
            self._place(prefill, events)
        return cost

    def _read_part(self, prefill: _Prefill, part: list[int]) -> None:
        request, head = prefill.request, self._model.head
        assert head is not None
        hidden, _ = self._model(torch.tensor([part], device=self._device), cache=prefill.cache)
        start, prefill.read = prefill.read, prefill.read + len(part)
        if request.score_prompt:
            logits = without_padding(head.logits(hidden[0]), self._tokenizer.vocab_size)
            following, top = request.prompt[start + 1 : prefill.read + 1], request.logprobs or 0
            prefill.scores += [score_token(row, token, top) for row, token in zip(logits, following, strict=False)]
        if prefill.read == len(request.prompt):
            prefill.logits = without_padding(head.logits(hidden[:, -1]), self._tokenizer.vocab_size)

    def _place(self, prefill: _Prefill, events: list[tuple[Request, Event]]) -> None:
        """Give texts of a prompt that is read a slot, as far as there are any, and their first token."""
        request, logits = prefill.request, prefill.logits
        assert logits is not None
        if request.score_prompt:
            events.append((request, PromptScores(tuple(prefill.scores))))
            request.score_prompt = False
        while prefill.texts and len(self._running) < self.limits.slots:
            text = prefill.texts.pop(0)
            made = text.choose(logits[0]) if request.max_tokens else text.end()
            events += [(request, each) for each in made]
            if not text.is_over:
                self._cache.join(prefill.cache)
                self._running.append(text)
        if not prefill.texts:
            self._prefill = None

    def _decode(self, events: list[tuple[Request, Event]]) -> None:
        """One more token for every text that has a slot."""
        if not self._running:
            return
        head = self._model.head
        assert head is not None
        tokens = torch.tensor([[text.token] for text in self._running], device=self._device)
        hidden, _ = self._model(tokens, positions=self._cache.positions(), cache=self._cache)
        logits = without_padding(head.logits(hidden[:, -1]), self._tokenizer.vocab_size)
        best = best_tokens(logits)
        for text, row, token in zip(self._running, logits, best, strict=True):
            made = text.take(token) if text.takes_best else text.choose(row)
            events += [(text.request, each) for each in made]
        for row in reversed(range(len(self._running))):
            if self._running[row].is_over:
                self._leave(row)

    def _leave(self, row: int) -> None:
        """Free a row; the last one moves there, in the cache and here."""
        self._cache.leave(row)
        last = self._running.pop()
        if row < len(self._running):
            self._running[row] = last


def _is_over(request: Request) -> bool:
    return request.cancelled or request.is_late


def _deliver(events: Iterable[tuple[Request, Event]]) -> None:
    for request, event in events:
        request.deliver(event)
