"""What one layer of a model makes of the tokens of a row, as relations between them, and how far two layers differ.

A relation of vectors a and b is softmax(a b^T / sqrt(size)) over the tokens that each token sees, for each of some
heads, into which the vectors of all heads are cut anew (MiniLM: Wang et al. 2020, arXiv 2002.10957, equations 5 to 7;
with heads of its own, MiniLMv2: arXiv 2012.15828, section 3.2). It has no width, so models of any widths and numbers of
heads are compared without a projection between them:

    attention   queries with keys: where the layer looks        query, key, value, hidden   each with itself

`hidden` is what the layer gives on; its relation is which tokens it makes alike. Keys and values that several heads
share count once for each.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hornbook.model.attention.attend import attend
from hornbook.model.attention.attention import FullAttention
from hornbook.model.layers.transfer import to_device
from hornbook.model.transformer import Transformer

Vectors = Float[Tensor, "batch time size"]
PAIRS = {
    "attention": ("query", "key"),
    "query": ("query", "query"),
    "key": ("key", "key"),
    "value": ("value", "value"),
    "hidden": ("hidden", "hidden"),
}
_UNSEEN = -1e30
"""A score whose probability is 0, and whose differences are finite."""


class Watch:
    """Keeps what one layer computes in a forward pass, until it is taken: in training, or `always`."""

    def __init__(self, model: Transformer, layer: int, *, always: bool = False) -> None:
        """layer: counted from 0."""
        block = list(model.blocks.values())[layer]
        self._block, self._always, self._seen = block, always, dict[str, Vectors]()
        block.register_forward_hook(self._see_block)
        attention = block.get_submodule("attention")
        if isinstance(attention, FullAttention):
            attention.attend = functools.partial(self._see_attention, attention.attend or attend)

    def take(self) -> dict[str, Vectors]:
        """Of the last pass: query, key and value, with positions, of all heads; and hidden."""
        seen, self._seen = self._seen, {}
        return seen

    def _see_block(self, _: Any, __: Any, made: tuple[Tensor, Any]) -> None:
        if self._always or self._block.training:
            self._seen["hidden"] = made[0]

    def _see_attention(
        self, former: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any
    ) -> Tensor:
        if self._always or self._block.training:
            times = query.shape[1] // key.shape[1]
            whole = (query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1))
            self._seen |= {
                name: each.transpose(1, 2).flatten(2)
                for name, each in zip(("query", "key", "value"), whole, strict=True)
            }
        return former(query, key, value, *rest, **more)


def divergence(
    ours: Mapping[str, Vectors],
    theirs: Mapping[str, Vectors],
    relations: Sequence[str],
    heads: int,
    seen: Bool[Tensor, "batch time time"],
) -> Float[Tensor, "batch time"]:
    """KL(theirs || ours) of each token's relations in nats: the mean over heads, summed over the kinds; float32."""
    total = torch.zeros(seen.shape[:2], device=seen.device)
    for name in relations:
        first, second = PAIRS[name]
        log_q, log_p = (_logs(each[first], each[second], heads, seen) for each in (ours, theirs))
        total = total + (log_p.exp() * (log_p - log_q)).sum(-1).mean(1)
    return total


def _logs(a: Vectors, b: Vectors, heads: int, seen: Tensor) -> Float[Tensor, "batch heads time time"]:
    first, second = (each.float().unflatten(2, (heads, -1)).transpose(1, 2) for each in (a, b))
    scores = first @ second.mT * first.shape[-1] ** -0.5
    return scores.masked_fill(~seen[:, None], _UNSEEN).log_softmax(-1)


def seen_tokens(
    lengths: Sequence[Sequence[int]], device: torch.device, *, causal: bool = True
) -> Bool[Tensor, "batch time time"]:
    """Which tokens each token sees: those of its document, or if `causal` those before it and itself."""
    numbers = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in lengths]
    documents = to_device(torch.stack(numbers), device)
    same = documents[:, :, None] == documents[:, None]
    return same.tril() if causal else same
