"""The log-likelihood of a continuation given its context: what choices and continuations are scored by."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from hornbook.data.batch import Batch
from hornbook.errors import UsageError
from hornbook.evals.task import Model, ModelContext, score_batches
from hornbook.parallel.world import World
from hornbook.text.tokenizer.tokenizer import Tokenizer

LENGTH_UNIT = 32
"""Rows of a batch are as long as a multiple of it, so that there are few different lengths."""
MOST_TOKENS = 2**14
"""Of a batch of several rows: a model that reads very long rows need not have room for eight of them."""
_CUT = 'shorten the prompt, or set long = "cut" in the task, which leaves out the beginnings of such prompts'


@dataclass(frozen=True)
class Request:
    """Token ids of a continuation, and of what comes before it; neither is empty."""

    context: list[int]
    continuation: list[int]
    cut: bool = False
    """The beginning of the context is left out, because the model reads no longer rows."""

    @property
    def length(self) -> int:
        """Tokens that the model reads: the last one is only predicted."""
        return len(self.context) + len(self.continuation) - 1

    def within(self, sequence: int, where: str, *, cut: bool, remedy: str = _CUT) -> "Request":
        """The request, or its last `sequence` tokens where it is longer and may be `cut`. Raises UsageError."""
        over = self.length - sequence
        if over <= 0:
            return self
        if len(self.continuation) > sequence:
            raise UsageError(
                f"{where}: the continuation has {len(self.continuation):,} tokens, and the model reads {sequence:,} "
                "(train.sequence): shorten it, or leave the item out"
            )
        if not cut:
            raise UsageError(
                f"{where}: {self.length:,} tokens, and the model reads {sequence:,} (train.sequence): {remedy}"
            )
        return replace(self, context=self.context[over:], cut=True)


def encode_request(tokenizer: Tokenizer, context: str, continuation: str, where: str) -> Request:
    """A document that begins with `context`, and goes on with `continuation`.

    Both are encoded as one text, with whitespace between them as part of the continuation, and cut where the context's
    own tokens end. Raises UsageError naming `where` if no token is left for the continuation.
    """
    begin = context.rstrip()
    continuation, context = context[len(begin) :] + continuation, begin
    before, whole = tokenizer.encode(context), tokenizer.encode(context + continuation)
    if not whole[len(before) :]:
        raise UsageError(
            f"{where}: {continuation!r} after {context[-40:]!r} is no token of this tokenizer: a text to be scored "
            "needs one token or more, so correct the item, or leave it out"
        )
    return Request([tokenizer.delimiter_id, *before], whole[len(before) :])


def log_likelihoods(
    model: Model, world: World, requests: Sequence[Request], context: ModelContext
) -> Float[np.ndarray, "requests 2"]:
    """Of each request the log-likelihood of the continuation in nats, and how many of its tokens are the likeliest.

    Greedy decoding gives the continuation where all are. float64, equal on every rank; NaN where `context.proceed`
    ended it.
    """

    def score(batch: Batch) -> np.ndarray:
        losses, right = (each.cpu().double() * (batch.weights > 0) for each in model.predictions(batch))
        return torch.stack([batch.samples.double(), -losses.sum(1), right.sum(1)], 1).numpy()

    batches = itertools.takewhile(lambda _: context.proceed(), _batches(requests, context))
    found = np.full((len(requests), 2), np.nan)
    rows = score_batches(world, batches, 3, score)[:, 1:]
    found[rows[:, 0].astype(int)] = rows[:, 1:]
    return found


def _batches(requests: Sequence[Request], context: ModelContext) -> Iterator[Batch]:
    """All requests, the longest first, in batches of as many tokens as a microbatch of training, or fewer."""
    order = sorted(range(len(requests)), key=lambda number: (-requests[number].length, number))
    budget = min(context.micro_batch * context.sequence, MOST_TOKENS)
    while order:
        longest = requests[order[0]].length
        length = max(longest, min(-(-longest // LENGTH_UNIT) * LENGTH_UNIT, context.sequence))
        count = max(budget // length, 1)
        yield _batch([requests[number] for number in order[:count]], order[:count], length)
        order = order[count:]


def _batch(requests: Sequence[Request], numbers: Sequence[int], length: int) -> Batch:
    tokens = torch.zeros(len(requests), length, dtype=torch.int64)
    targets, weights = torch.zeros_like(tokens), torch.zeros(tokens.shape)
    for row, request in enumerate(requests):
        ids = torch.tensor(request.context + request.continuation)
        tokens[row, : request.length], targets[row, : request.length] = ids[:-1], ids[1:]
        weights[row, len(request.context) - 1 : request.length] = 1.0
    return Batch(
        tokens=tokens,
        targets=targets,
        weights=weights,
        positions=torch.arange(length).repeat(len(requests), 1),
        document_lengths=[(length,)] * len(requests),
        samples=torch.tensor(numbers),
        sources=torch.zeros(len(requests), dtype=torch.int64),
    )
