"""Continuous batching: one thread that generates all texts together, which join and leave between its steps.

A step reads prompts in order of arrival, several in one pass where they fit (`prefill.py`), until it has read
`Limits.prefill` tokens or more (less than twice as many). Then it adds one token to every text that is being generated.
Each text has a row of the `BatchCache`; prompts are read into a cache of their own first. So a text depends on its own
prompt, sampling and seed, never on what is generated beside it: rows do not mix, and the parts in which prompts are
read are counted from their beginning. (Matrix products of another number of rows may round otherwise, by the last bits
of float32.)
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hornbook.model.attention.batch_cache import BatchCache
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.layers.transfer import to_device
from hornbook.model.storage.load import Loaded
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.serve.limits import Limits
from hornbook.serve.prefill import Prefill, PromptReader
from hornbook.serve.requests import Event, Failed, Request
from hornbook.serve.served_text import Text, next_tokens, without_padding

Publish = Callable[[list[tuple[Request, Event]]], None]


class QueueFull(Exception):
    """There are as many texts waiting as may wait."""


class Closed(Exception):
    """The engine takes no more requests."""


class Engine:
    """Generates texts in a thread of its own, from `start` to `close`."""

    def __init__(self, loaded: Loaded, limits: Limits, publish: Publish | None = None) -> None:
        self._model, self._tokenizer, self.limits = loaded.model, loaded.require_tokenizer(), limits
        self._device = next(loaded.model.parameters()).device
        self.publish: Publish = publish or _deliver
        """Called with the events of a step, in the engine's thread."""
        self._ahead = prompt_length(loaded.model)
        self._reader = PromptReader(loaded.model, self._tokenizer, limits.prefill)
        self._cache = BatchCache(limits.slots, limits.context + self._ahead)
        self._running: list[Text] = []
        """The text of each row of the cache."""
        self._reading: list[Prefill] = []
        """Prompts that have texts without a slot."""
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.steps = 0

    def cache_bytes(self) -> int:
        """Bytes of the cache once every slot is full, by what it holds of one token."""
        return self._reader.position_bytes() * self.limits.slots * (self.limits.context + self._ahead)

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
            reading = sum(len(each.texts) for each in self._reading)
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
        return bool(self._waiting or self._running or self._reading)

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
            under_way = [*self._running, *self._reading]
            requests = {*(each.request for each in under_way), *self._waiting}
            self._running, self._reading = [], []
            self._waiting.clear()
        self.publish([(each, failure) for each in requests])

    def _step(self) -> list[tuple[Request, Event]]:
        events = self._drop()
        self._place(events)
        budget = self.limits.prefill
        while budget > 0 and self._choose_prompts(budget):
            budget -= self._reader.read(self._reading)
            self._place(events)
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
        with self._changed:
            gone |= {each.request: None for each in self._reading if _is_over(each.request)}
            self._reading = [each for each in self._reading if each.request not in gone]
            over = [each for each in self._waiting if _is_over(each)]
            for each in over:
                self._waiting.remove(each)
        return [(each, late) for each in (*gone, *over) if not each.cancelled]

    def _choose_prompts(self, budget: int) -> bool:
        """Add to the prompts that are read in one pass those that fit and have a slot; whether there are any."""
        free = self.limits.slots - len(self._running)
        with self._changed:
            while free > sum(len(each.texts) for each in self._reading) and self._waiting:
                if not self._reader.fits(self._reading, self._waiting[0], budget):
                    break
                self._reading.append(Prefill(self._waiting.popleft(), self._tokenizer))
        return bool(free and self._reading)

    def _place(self, events: list[tuple[Request, Event]]) -> None:
        """Give texts of prompts that are read a slot, as far as there are any, and their first token."""
        for prompt in self._reading:
            events += prompt.tell()
        while pairs := self._placeable():
            logits = torch.cat([logits for _, _, logits in pairs])
            events += next_tokens([text for _, text, _ in pairs], logits)
            for cache, text, _ in pairs:
                if not text.is_over:
                    self._cache.join(cache)
                    self._running.append(text)
        self._reading = [each for each in self._reading if each.texts]

    def _placeable(self) -> list[tuple[KVCache, Text, Tensor]]:
        """Texts whose prompt is read, as many as there are free slots: what the cache holds of it, and its logits."""
        free, found = self.limits.slots - len(self._running), []
        for each in self._reading:
            while each.logits is not None and each.texts and len(found) < free:
                found.append((each.cache, each.texts.popleft(), each.logits))
        return found

    def _decode(self, events: list[tuple[Request, Event]]) -> None:
        """One more token for every text that has a slot."""
        if not self._running:
            return
        head = self._model.head
        assert head is not None
        tokens = to_device(torch.tensor([[text.token] for text in self._running]), self._device)
        hidden, _ = self._model(tokens, positions=self._cache.positions(), cache=self._cache)
        logits = without_padding(head.logits(hidden[:, -1]), self._tokenizer.vocab_size)
        events += next_tokens(self._running, logits)
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
