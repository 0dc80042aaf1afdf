"""Beam search: the most likely texts, grown side by side (Graves 2012; length penalty of Wu et al. 2016).

At each length the `beams` best unfinished texts are kept. A text that ends is finished with the score

    log p(text) / length^penalty,

and the search is over when no unfinished text, taken at its present length, scores better than the worst of `beams`
finished ones. These are the rules of transformers' `generate(num_beams=..., early_stopping=False)`.
"""

import json
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.forward_context import Memory
from hornbook.model.generate.sampling import REMOVED
from hornbook.model.layers.transfer import to_device
from hornbook.model.transformer import Transformer


class Hypothesis(NamedTuple):
    """A text and how good it is."""

    score: float
    """Log-likelihood (nats) of its tokens; once finished, divided by its length to the power of the penalty."""
    tokens: list[int]
    """What was generated; a finished text's last token is the one that ended it."""


def beam_search(
    model: Transformer,
    prompt: Sequence[int],
    *,
    beams: int,
    max_tokens: int,
    stop: Collection[int],
    length_penalty: float = 1.0,
    memory: Memory | None = None,
    vocab: int | None = None,
    agree: Callable[[str], str] | None = None,
) -> list[Hypothesis]:
    """The finished continuations of `prompt`, best first; a text also ends with `max_tokens`.

    memory: what an encoder-decoder answers to (`Transformer.encode`). vocab: ids from here on are never chosen.
    agree: what ranks that hold the model together make of the texts that each has chosen, written as JSON.
    Errors: UsageError.
    """
    if beams < 1 or max_tokens < 1:
        raise UsageError(f"a beam search needs at least one beam and one token, not {beams} and {max_tokens}")
    cache = KVCache()
    running, finished = [Hypothesis(0.0, [])], list[Hypothesis]()
    pending = [list(prompt)]
    for length in range(1, max_tokens + 1):
        scores = _log_likelihoods(model, pending, cache, memory, vocab)
        total = scores + to_device(torch.tensor([each.score for each in running]), scores.device)[:, None]
        # So many that `beams` unfinished ones are among them whatever ends.
        best = total.flatten().topk(min(max(2, 1 + len(stop)) * beams, total.numel()))
        rows, going = list[int](), list[Hypothesis]()
        chosen = torch.stack([best.values.double(), best.indices.double()]).tolist()  # the host waits once
        chosen = chosen if agree is None else json.loads(agree(json.dumps(chosen)))
        for rank, (score, index) in enumerate(zip(*chosen, strict=True)):
            row, token = divmod(int(index), total.shape[1])
            text = Hypothesis(score, [*running[row].tokens, token])
            if token not in stop and length < max_tokens:
                going, rows = [*going, text], [*rows, row]
            elif rank < beams:
                finished.append(Hypothesis(score / length**length_penalty, text.tokens))
        finished = sorted(finished, key=lambda each: -each.score)[:beams]
        running, rows = going[:beams], rows[:beams]
        if not running or (len(finished) == beams and running[0].score / length**length_penalty <= finished[-1].score):
            break
        cache.select(to_device(torch.tensor(rows), scores.device))
        memory = memory and Memory(memory.states[:1].expand(len(running), -1, -1), memory.lengths)
        pending = [each.tokens[-1:] for each in running]
    return finished


def _log_likelihoods(
    model: Transformer, pending: list[list[int]], cache: KVCache, memory: Memory | None, vocab: int | None
) -> Float[Tensor, "beams vocab"]:
    """Log-likelihood of each token as the next of each text, whose last tokens are not in the cache yet."""
    assert model.head is not None
    with torch.no_grad():
        tokens = to_device(torch.tensor(pending), next(model.parameters()).device)
        hidden, _ = model(tokens, cache=cache, memory=memory)
        logits = model.head.logits(hidden[:, -1])
    scores = logits.log_softmax(-1)
    if vocab is not None:
        scores[:, vocab:] = REMOVED
    return scores
