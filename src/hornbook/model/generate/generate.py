"""Text from a model: one token after the other, each computed from the cached keys and values of those before.

A text may grow longer than the model's positions. Then it goes on from its last half: these tokens are computed
anew from position 0, and the cache has room for as many again. So a long text costs at most twice the
computation, and what lies further back than the window is forgotten.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.forward_context import Memory
from hornbook.model.generate.sampling import REMOVED, Sampling, TokenCounts, choose_token
from hornbook.model.generate.text_stream import StopStrings, TextStream
from hornbook.model.layers.transfer import to_device
from hornbook.model.surgery.adapters.prompt import prompt_length
from hornbook.model.transformer import Transformer
from hornbook.text.tokenizer.tokenizer import Tokenizer


class Past:
    """What a model has computed of a text; one that begins with it and goes on costs only what is new."""

    def __init__(self) -> None:
        self._cache: KVCache | None = None
        self._tokens: list[int] = []

    def take(self, model: Transformer, tokens: list[int]) -> tuple[KVCache, list[int]]:
        """A cache, and which of `tokens` it lacks; an empty one unless this one holds a beginning of them."""
        held, cache = len(self._tokens), self._cache
        if cache is None or cache.length != held + prompt_length(model) or not held < len(tokens):
            return KVCache(), tokens  # an interrupt between two lines may leave it out of step
        return (cache, tokens[held:]) if tokens[:held] == self._tokens else (KVCache(), tokens)

    def keep(self, cache: KVCache, tokens: list[int]) -> None:
        """Hold on to a cache and the tokens whose keys and values it has."""
        self._cache, self._tokens = cache, tokens


def generate(
    model: Transformer,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    stop: Collection[int] = (),
    vocab: int | None = None,
    length: int | None = None,
    agree: Callable[[int], int] | None = None,
    memory: Memory | None = None,
    past: Past | None = None,
    observe: Callable[[Tensor, int], None] | None = None,
    **sampling: Any,
) -> Iterator[int]:
    """Ids that continue `tokens`, as they come; ends after `max_tokens` or before an id of `stop`.

    tokens: at least one id; a document begins with the tokenizer's delimiter. vocab: ids from here on are never chosen
    (rows of the embedding that pad it). length: positions to use at most, by default those the model has vectors
    for, else no limit. agree: what ranks that hold the model together make of the id that each has chosen, so that
    none goes on alone where the last bits of their logits differ. memory: what an encoder-decoder answers to
    (`Transformer.encode`). past: what was computed of an earlier, shorter `tokens`; it takes up what is computed now.
    observe: called with the logits of each token, before penalties and filters, and the token that was chosen.
    sampling: the fields of `Sampling`.
    Errors: UsageError.
    """
    how, counts = Sampling(**sampling), TokenCounts(frozenset(tokens))
    if not tokens:
        raise UsageError("there is no token to continue: begin with the tokenizer's delimiter")
    learned = None if model.positions is None else model.positions.length
    room = min((each for each in (learned, length) if each is not None), default=None)

    def choose(logits: Tensor, index: int) -> int:
        if vocab is not None:
            logits[vocab:] = REMOVED
        token = choose_token(logits, how, index, counts)
        token = token if agree is None else agree(token)
        counts.add(token)
        if observe is not None:
            observe(logits, token)
        return token

    ids = _continue(model, list(tokens), choose, max_tokens, room, memory, past or Past())
    return takewhile(lambda token: token not in stop, ids)


def _continue(
    model: Transformer,
    history: list[int],
    choose: Callable[[Tensor, int], int],
    max_tokens: int,
    room: int | None,
    memory: Memory | None,
    past: Past,
) -> Iterator[int]:
    """Ids that `choose` takes, each by its logits and its number."""
    (cache, pending), ahead = past.take(model, history), prompt_length(model)
    held = history[: len(history) - len(pending)]
    for index in range(max_tokens):
        if room is not None and (cache.length or ahead) + len(pending) > room:  # the cache holds a soft prompt too
            cache, pending, held = KVCache(), history[-max((room - ahead) // 2, 1) :], []
        logits = next_logits(model, pending, cache, memory)
        held += pending
        past.keep(cache, held)
        token = choose(logits, index)
        yield token
        history.append(token)
        pending = [token]


def next_logits(
    model: Transformer, tokens: Sequence[int], cache: KVCache, memory: Memory | None = None
) -> Float[Tensor, " vocab"]:
    """Logits of the token that follows `tokens`, which follow what the cache holds; the cache takes them up."""
    device = next(model.parameters()).device
    with torch.no_grad():
        hidden, _ = model(to_device(torch.tensor([tokens]), device), cache=cache, memory=memory)
        assert model.head is not None
        return model.head.logits(hidden[0, -1])


def stream_text(
    ids: Iterable[int], tokenizer: Tokenizer, before: Sequence[int] = (), ends: StopStrings | None = None
) -> Iterator[str]:
    """Pieces of the text of the ids as soon as they are certain (`TextStream`), up to the first string of `ends`.

    `before` are the ids that the text continues; they are not shown. No id is asked for after such a string, which
    `ends.found` names.
    """
    text, ends = TextStream(tokenizer, before), StopStrings() if ends is None else ends
    for token in ids:
        if piece := ends.push(text.push(token)):
            yield piece
        if ends.found is not None:
            return
    yield from filter(None, [ends.push(text.flush()) + ends.flush()])
