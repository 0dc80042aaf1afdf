"""The log-likelihood of a continuation given its context: what choices and continuations are scored by."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

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
    joined_bytes: int = field(default=0, repr=False)
    """UTF-8 bytes of the context's end that the continuation's tokens hold besides."""

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

    Both are encoded as one text, with whitespace between them as part of the continuation. The first token that holds a
    character of the continuation is the first that is scored, also where it holds the end of the context: such a text
    has no other tokens. Raises UsageError naming `where` if no token is left for the continuation.
    """
    return encode_choices(tokenizer, context, {where: continuation})[0]


def encode_choices(tokenizer: Tokenizer, context: str, continuations: Mapping[str, str]) -> list[Request]:
    """The requests of several continuations, by the place that an error names, after one context.

    All are scored from one place on, the end of the tokens before any continuation that all of them share: so that the
    scores are of the same characters of the context where a token spans the join in one of them.
    """
    begin = context.rstrip()
    encoded = tokenizer.encode_offsets([context + continuation for continuation in continuations.values()])
    befores = []
    for (where, continuation), (ids, offsets) in zip(continuations.items(), encoded, strict=True):
        first = next((number for number, (_, end) in enumerate(offsets) if end > len(begin)), len(ids)) if begin else 0
        if not ids[first:]:
            raise UsageError(
                f"{where}: {context[len(begin) :] + continuation!r} after {begin[-40:]!r} is no token of this "
                "tokenizer: a text to be scored needs one token or more, so correct the item, or leave it out"
            )
        befores.append(ids[:first])
    columns = enumerate(zip(*befores, strict=False))
    shared = next((number for number, column in columns if len({*column}) > 1), min(map(len, befores)))
    start = min(offsets[shared][0] for _, offsets in encoded)
    joined = len(begin[start:].encode())
    return [Request([tokenizer.delimiter_id, *ids[:shared]], ids[shared:], joined_bytes=joined) for ids, _ in encoded]


def log_likelihoods(
    model: Model, world: World, requests: Sequence[Request], context: ModelContext
) -> Float[np.ndarray, "requests 2"]:
    """Of each request the log-likelihood of the continuation in nats, and how many of its tokens are the likeliest.

    Greedy decoding gives the continuation where all are. float64, equal on every rank; NaN where `context.proceed`
    ended it.
    """

    def score(batch: Batch, *predictions: Tensor) -> np.ndarray:
        losses, right = (each.double() * (batch.weights > 0) for each in predictions)
        return torch.stack([batch.samples.double(), -losses.sum(1), right.sum(1)], 1).numpy()

    batches = itertools.takewhile(lambda _: context.proceed(), _batches(requests, context))
    found = np.full((len(requests), 2), np.nan)
    rows = score_batches(world, batches, 3, model.predictions, score)[:, 1:]
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
