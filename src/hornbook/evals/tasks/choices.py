"""Tasks scored by log-likelihood: of several continuations the likeliest, or of one its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from hornbook.evals.items import ItemScores, digest_of
from hornbook.evals.likelihood import Request, log_likelihoods
from hornbook.evals.task import Model, TaskContext
from hornbook.parallel.world import World


@dataclass(frozen=True)
class Choice:
    """A question with its possible answers."""

    requests: Sequence[Request]
    """Of each answer; answers may have contexts of their own."""
    sizes: Sequence[int]
    """UTF-8 bytes of each answer, with those of the context that its tokens hold besides."""
    right: int
    text: str
    """The question with its right answer."""
    group: str = ""
    """Items of a group have an accuracy of their own besides."""


@dataclass(frozen=True)
class ChoiceTask:
    """Which answer the model finds the likeliest."""

    name: str
    items: Sequence[Choice]
    context: TaskContext

    @property
    def texts(self) -> list[str]:
        """Text of each item."""
        return [item.text for item in self.items]

    def score(self, model: Model, world: World) -> ItemScores:
        """`accuracy` by the whole log-likelihood, `accuracy_norm` by that of a byte; of n equals each counts 1 / n."""
        requests = [request for item in self.items for request in item.requests]
        found = log_likelihoods(model, world, requests, self.context)[:, 0]
        firsts = np.cumsum([0, *(len(item.requests) for item in self.items)])
        plain, norm = np.zeros((2, len(self.items)))
        for number, item in enumerate(self.items):
            own = found[firsts[number] : firsts[number + 1]]
            plain[number] = _point(own, item.right)
            norm[number] = _point(own / np.array(item.sizes), item.right)
        values = {"accuracy": plain, "accuracy_norm": norm}
        for group in dict.fromkeys(item.group for item in self.items if item.group):
            values[f"accuracy_{group}"] = plain[[item.group == group for item in self.items]]
        digest = digest_of(*(_identity(item.text, item.requests) for item in self.items))
        return ItemScores(values, digest, _cut([item.requests for item in self.items]))


def _point(scores: Float[np.ndarray, " answers"], right: int) -> float:
    """1 where the right answer has the largest score, shared among equals: chance, where all are."""
    best = scores == scores.max()
    return float(best[right]) / max(int(best.sum()), 1)


@dataclass(frozen=True)
class Continuation:
    """A text and what follows it."""

    request: Request
    size: int
    """UTF-8 bytes of what is scored; 0 where it is tokens without a text."""
    text: str
    group: str = ""


@dataclass(frozen=True)
class ContinuationTask:
    """How likely the model finds what follows, and whether greedy decoding gives it."""

    name: str
    items: Sequence[Continuation]
    context: TaskContext

    @property
    def texts(self) -> list[str]:
        """Text of each item."""
        return [item.text for item in self.items]

    def score(self, model: Model, world: World) -> ItemScores:
        """`exact`: all tokens are the likeliest; `loss`: nats per token of the item; `bits_per_byte` over all bytes."""
        requests = [item.request for item in self.items]
        nats, right = log_likelihoods(model, world, requests, self.context).T
        lengths = np.array([len(request.continuation) for request in requests])
        exact = (right == lengths).astype(float)
        sizes = np.array([item.size for item in self.items])
        values = {"exact": exact, "loss": -nats / lengths}
        with_text = {"bits_per_byte": sizes} if sizes.any() else {}
        if with_text:  # over the mean bytes of an item, so that the mean is that of all bytes together
            values["bits_per_byte"] = -nats / math.log(2) / sizes.mean()
        for group in dict.fromkeys(item.group for item in self.items if item.group):
            values[f"exact_{group}"] = exact[[item.group == group for item in self.items]]
        digest = digest_of(*(_identity(item.text, [item.request]) for item in self.items))
        return ItemScores(values, digest, _cut([[request] for request in requests]), with_text)


@dataclass(frozen=True)
class CopyTask:
    """How much better a model predicts random tokens that it has read once already (induction heads)."""

    name: str
    halves: Sequence[list[int]]
    context: TaskContext
    delimiter: int
    texts: Sequence[str] = field(default_factory=tuple)

    def score(self, model: Model, world: World) -> ItemScores:
        """`accuracy` of tokens the second time; `gain`: nats per token by which they are likelier than the first."""
        once = [Request([self.delimiter], half) for half in self.halves]
        again = [Request([self.delimiter, *half], half) for half in self.halves]
        found = log_likelihoods(model, world, [*once, *again], self.context)
        first, second = np.split(found, 2)
        lengths = np.array([len(half) for half in self.halves])
        values = {"accuracy": second[:, 1] / lengths, "gain": (second[:, 0] - first[:, 0]) / lengths}
        return ItemScores(values, digest_of(*self.halves))


def _identity(text: str, requests: Sequence[Request]) -> object:
    """What tells an item from others: its text under any tokenizer, unless the model reads something else."""
    return text if text and not _cut([requests]) else requests


def _cut(items: Sequence[Sequence[Request]]) -> dict[str, int]:
    """How many items have a request that is cut, if there are any."""
    cut = sum(any(request.cut for request in requests) for requests in items)
    return {"cut": cut} if cut else {}
