"""Prefix tuning (Li and Liang 2021, arXiv 2101.00190): trained keys and values before each document in each layer.

Rows grow by positions before each document, as under prompt tuning (`prompt.put_prompts`), and in every layer the
trained keys and values take the places of those that were computed there: what such a position computes nobody sees.
So masks, kernels and caches know nothing of prefixes. Keys stand as they are, without rotation.

With `hidden` they are P = W2 tanh(W1 E + b1) + b2 (section 4.3): E, W1 and b1 lie on the model, and each layer has its
rows of W2 and b2. After training P is all that counts (`without_network`).
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.attention.attention import FullAttention
from hornbook.model.config.surgery_config import PrefixConfig, SurgeryStep
from hornbook.model.forward_context import Prefix
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.adapters.prompt import STD, forward_ahead
from hornbook.model.surgery.added import Added, keyed_normal, keyed_uniform
from hornbook.model.transformer import Transformer

Heads = Float[Tensor, "batch kv_heads time head_dim"]


class PrefixStates(Added):
    """On the model: where the prefix stands, and tanh(W1 E + b1) if layers make theirs of it.

    `weight` [length, width], `down` of width to hidden; both absent where layers have keys and values of their own.
    """

    role: ClassVar = "position"

    def __init__(self, step: PrefixConfig, width: int) -> None:
        super().__init__()
        self.length = step.length
        self.weight = nn.Parameter(torch.empty(step.length, width)) if step.hidden else None
        self.down = Linear(width, step.hidden, bias=True) if step.hidden else None

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Prefix:
        """tokens: the ids -1, -2, ... stand before each document."""
        return Prefix(-1 - tokens, self.states())

    def states(self) -> Float[Tensor, "length hidden"] | None:
        """What layers make keys and values of."""
        return None if self.weight is None or self.down is None else self.down(self.weight).tanh()

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del weight
        if self.weight is not None and self.down is not None:
            yield "weight", keyed_normal(tuple(self.weight.shape), STD, seed, f"{name}.weight")
            yield from _first_linear(self.down, "down", seed, name)


class LayerPrefix(Added):
    """In a layer: `key` and `value` [length, kv_heads * head_dim], or `up`, which makes them of states."""

    role: ClassVar = "position"

    def __init__(self, step: PrefixConfig, width: int) -> None:
        super().__init__()
        own = (torch.empty(step.length, width) for _ in range(2))
        self.key, self.value = (None, None) if step.hidden else map(nn.Parameter, own)
        self.up = Linear(step.hidden, 2 * width, bias=True) if step.hidden else None

    def forward(self, key: Heads, value: Heads, prefix: Prefix) -> tuple[Heads, Heads]:
        """Keys and values of a row, with those of the prefix in their places."""
        own = self.pair(prefix.states)
        return _put(key, own[0], prefix.numbers), _put(value, own[1], prefix.numbers)

    def pair(self, states: Float[Tensor, "length hidden"] | None) -> tuple[Tensor, Tensor]:
        """Keys and values, [length, kv_heads * head_dim] each."""
        if self.key is not None and self.value is not None:
            return self.key, self.value
        assert self.up is not None
        assert states is not None
        key, value = self.up(states).chunk(2, -1)
        return key, value

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del weight
        for each, own in (("key", self.key), ("value", self.value)):
            if own is not None:
                yield each, keyed_normal(tuple(own.shape), STD, seed, f"{name}.{each}")
        if self.up is not None:
            yield from _first_linear(self.up, "up", seed, name)


def _first_linear(layer: Linear, own: str, seed: int, name: str) -> Iterator[tuple[str, Tensor]]:
    shape = tuple(layer.weight.shape)
    yield f"{own}.weight", keyed_uniform(shape, shape[1] ** -0.5, seed, f"{name}.{own}.weight")
    yield f"{own}.bias", torch.zeros(shape[0])


def _put(heads: Heads, own: Float[Tensor, "length width"], numbers: Int[Tensor, "batch time"]) -> Heads:
    rows = F.embedding(numbers.clamp(min=0), own.to(heads.dtype)).unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)
    return torch.where((numbers >= 0)[:, None, :, None], rows, heads)


def add_prefix(model: Transformer, step: PrefixConfig) -> None:
    """Give every layer of a decoder a prefix. UsageError for layers that do not always see it."""
    embedding, blocks = model.get_submodule("embedding"), model.get_submodule("blocks")
    weight = embedding.get_parameter("weight")
    with torch.device(weight.device):
        for number, block in blocks.named_children():
            attention = block.attention
            if type(attention) is not FullAttention or attention.cfg.window is not None:
                raise UsageError(
                    f"surgery prefix: blocks.{number}.attention is no full attention (it has a window, a latent or a "
                    "state), in which every token sees the keys of a prefix: take prompt, lora or ia3"
                )
            attention.prefix = LayerPrefix(step, attention.key.weight.shape[0])
        model.prefix = PrefixStates(step, weight.shape[1])
    embedding.forward = functools.partial(_embed, embedding.forward)
    model.forward = functools.partial(forward_ahead, model.forward, step.length)


def _embed(forward: Callable[[Tensor], Tensor], tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
    return forward(tokens.clamp(min=0))  # what stands before a document is not seen


@torch.no_grad()
def without_network(
    steps: Sequence[SurgeryStep], added: Mapping[str, Tensor]
) -> tuple[tuple[SurgeryStep, ...], dict[str, Tensor]]:
    """Steps, and the values of what they add, with the keys and values of a prefix in place of what made them."""
    plain = tuple(
        each.model_copy(update={"hidden": None}) if isinstance(each, PrefixConfig) else each for each in steps
    )
    if plain == tuple(steps):
        return plain, dict(added)
    states = F.linear(added["prefix.weight"], added["prefix.down.weight"], added["prefix.down.bias"]).tanh()
    found = {name: each for name, each in added.items() if not name.startswith("prefix.") and ".prefix.up." not in name}
    for name, weight in added.items():
        if name.endswith(".attention.prefix.up.weight"):
            layer = name.removesuffix("up.weight")
            key, value = F.linear(states, weight, added[f"{layer}up.bias"]).chunk(2, -1)
            found |= {f"{layer}key": key.contiguous(), f"{layer}value": value.contiguous()}
    return plain, found
