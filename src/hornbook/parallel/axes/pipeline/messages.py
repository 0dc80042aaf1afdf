"""What stages send one another: hidden states forward, their gradients backward.

A send waits for nobody, and its tensor is kept until it has arrived: hidden states, which backward keeps in any case,
until their gradient comes back; gradients until as many later ones are sent as the pipeline has ranks, which waits for
the oldest of them. No schedule comes to a stop there. A receive is posted before it is needed. Hidden states and
gradients, down the ranks and up, have a process group each: so on a back-end without tags (NCCL), where messages
between two ranks are matched by their order, no message waits behind one of another kind; and within a kind ranks
receive in the order in which others send (`tests/parallel/axes/pipeline/test_pass_orders.py`).
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.parallel.axes.pipeline.stages import Layout
from hornbook.parallel.traffic.step_clock import StepClock
from hornbook.parallel.world import World

MOST_TENSORS = 2
"""Of a message: hidden states and the encoder's memory."""
Content = Literal["F", "I"]
"""Hidden states that a stage goes on with; or gradients of what a stage sent."""


class Key(NamedTuple):
    """A message, by the pass that needs it."""

    content: Content
    stage: int
    microbatch: int


class Messages:
    """Those of one step, or one evaluation, at a time."""

    def __init__(self, world: World, layout: Layout, clock: StepClock) -> None:
        self._layout, self._clock, self._device = layout, clock, world.device
        contents: tuple[Content, ...] = ("F", "I")
        self._groups = {(each, down): world.open_group(["pipeline"]) for each in contents for down in (True, False)}
        self._here: dict[Key, list[Tensor]] = {}
        self._coming: dict[Key, list[tuple[Any, Tensor]]] = {}
        self._leaving: dict[Key, list[tuple[Any, Tensor]]] = {}
        """In the order in which they were sent."""
        self.most_leaving = layout.ranks
        """Messages of gradients under way at most."""

    def _sender(self, key: Key) -> int:
        """The rank of the stage that a message comes from."""
        return self._layout.rank_of(key.stage + (-1 if key.content == "F" else 1))

    def _tag(self, key: Key, number: int) -> int:
        return (key.microbatch * self._layout.stages + key.stage) * MOST_TENSORS + number

    def send(self, key: Key, tensors: Sequence[Tensor]) -> None:
        """Send the message that the pass of `key` needs."""
        sent = [tensor.detach().contiguous() for tensor in tensors]
        mine, to = self._layout.rank, self._layout.rank_of(key.stage)
        if to == mine:
            self._here[key] = sent
            return
        if key.content == "I":
            self._limit_gradients()
        group = self._groups[key.content, to > mine]
        for tensor in sent:
            self._clock.traffic.count("pipeline", "send", tensor.nbytes)
        self._leaving[key] = [
            (dist.isend(tensor, group=group, group_dst=to, tag=self._tag(key, number)), tensor)
            for number, tensor in enumerate(sent)
        ]

    def expect(self, key: Key, shapes: Sequence[torch.Size], dtype: torch.dtype) -> None:
        """Post the receive of a message; its tensors have these shapes."""
        mine, sender = self._layout.rank, self._sender(key)
        if sender == mine or key in self._coming:
            return
        group, received = self._groups[key.content, sender < mine], []
        for number, shape in enumerate(shapes):
            tensor = torch.empty(shape, dtype=dtype, device=self._device)
            received.append((dist.irecv(tensor, group=group, group_src=sender, tag=self._tag(key, number)), tensor))
        self._coming[key] = received

    def take(self, key: Key) -> list[Tensor]:
        """The tensors of a message, which was expected; waits for it."""
        if self._sender(key) == self._layout.rank:
            return self._here.pop(key)
        received = self._coming.pop(key)
        with self._clock.collective("pipeline", "send", 0):  # counted by the sender
            for work, _ in received:
                work.wait()
            if key.content == "I":  # whoever sends a gradient back has received what it is of
                self._let_go(Key("F", key.stage + 1, key.microbatch))
        return [tensor for _, tensor in received]

    def _limit_gradients(self) -> None:
        """Before one more is sent, wait until the oldest has arrived where too many are under way."""
        gradients = [each for each in self._leaving if each.content == "I"]
        if len(gradients) >= self.most_leaving:
            with self._clock.collective("pipeline", "send", 0):
                self._let_go(gradients[0])

    def _let_go(self, key: Key) -> None:
        for work, _ in self._leaving.pop(key, ()):
            work.wait()

    def end(self) -> None:
        """Wait until all that was sent has arrived."""
        with self._clock.collective("pipeline", "send", 0):
            for key in list(self._leaving):
                self._let_go(key)
        assert not self._here, "a message was not taken"
        assert not self._coming, "a message was not taken"

    def drop(self) -> None:
        """Forget a step that was broken off: no memory of it stays."""
        self._here, self._coming, self._leaving = {}, {}, {}
