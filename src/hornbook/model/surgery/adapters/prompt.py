"""Prompt tuning (Lester et al. 2021, arXiv 2104.08691): trained vectors before each document of a frozen model.

Inside the model they are tokens with the ids -1, -2, ... -length: a hook on the model puts them before each document
and takes their hidden states away again, and the embedding looks them up in `embedding.prompt`. So nothing else of
the model, the data or the loss knows of them.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model.attention.position import Lengths
from hornbook.model.config import surgery_config as config
from hornbook.model.layers.transfer import to_device
from hornbook.model.surgery.added import Added, keyed_normal

STD = 0.02
"""Of first values: the size of embeddings as GPT-2 begins."""


class SoftPrompt(Added):
    """`weight` [length, width]."""

    role: ClassVar = "position"

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.empty(length, width))

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del weight
        yield "weight", keyed_normal(tuple(self.weight.shape), STD, seed, f"{name}.weight")


@dataclass(frozen=True)
class Prompted:
    """Rows of a batch with prompts before their documents."""

    source: Int[Tensor, "batch extended"]
    """Index into the row as it was, or the negative id of a prompt's vector; padding repeats vector -1."""
    columns: Int[Tensor, "batch time"]
    """Where the row's own tokens are now."""
    lengths: Lengths | None


def put_prompts(time: int, lengths: Lengths | None, length: int) -> Prompted:
    """Where everything goes; rows with fewer documents are filled up by a document of padding at their end."""
    rows = lengths if lengths is not None else [(time,)]
    extended = time + length * max(map(len, rows))
    prompt, source, new_lengths = torch.arange(-1, -length - 1, -1), [], []
    for row in rows:
        parts, start = [], 0
        for size in row:
            parts += [prompt, torch.arange(start, start + size)]
            start += size
        padding = extended - time - length * len(row)
        source.append(torch.cat([*parts, torch.full((padding,), -1)]))
        new_lengths.append((*(size + length for size in row), *([padding] if padding else [])))
    table = torch.stack(source)
    columns = (table >= 0).nonzero()[:, 1].view(len(rows), time)
    return Prompted(table, columns, None if lengths is None else new_lengths)


def add_prompt(model: nn.Module, step: config.PromptConfig) -> None:
    """Give a decoder a soft prompt of `step.length` vectors."""
    embedding = model.get_submodule("embedding")
    weight = embedding.get_parameter("weight")
    with torch.device(weight.device):
        embedding.add_module("prompt", SoftPrompt(step.length, weight.shape[1]))
    embedding.forward = functools.partial(_embed, embedding, embedding.forward)
    model.forward = functools.partial(forward_ahead, model.forward, step.length)


def prompt_length(model: nn.Module) -> int:
    """Positions that a soft prompt, or a prefix, takes before every text; 0 where there is none."""
    ahead = getattr(model.get_submodule("embedding"), "prompt", None) or getattr(model, "prefix", None)
    return 0 if ahead is None else ahead.length


def _embed(
    embedding: nn.Module, forward: Callable[[Tensor], Tensor], tokens: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time width"]:
    vectors = nn.functional.embedding((-1 - tokens).clamp(min=0), embedding.get_parameter("prompt.weight"))
    return torch.where((tokens < 0)[..., None], vectors, forward(tokens.clamp(min=0)))


def forward_ahead(
    forward: Callable[..., tuple[Tensor, Any]],
    length: int,
    tokens: Int[Tensor, "batch time"],
    positions: Int[Tensor, "batch time"] | None = None,
    lengths: Lengths | None = None,
    keys: Tensor | None = None,
    cache: Any = None,
    **others: Any,
) -> tuple[Float[Tensor, "batch time width"], Any]:
    """`Transformer.forward` over rows with tokens -1, ... -length before documents; states of the rows' own."""
    assert all(other is None for other in others.values()), "a soft prompt stands before plain causal rows"
    if cache is not None and cache.length > 0:  # it holds the prompt already
        return forward(tokens, positions, lengths, keys, cache)
    put = put_prompts(tokens.shape[1], lengths, length)
    source = to_device(put.source, tokens.device).expand(len(tokens), -1)
    extended = torch.where(source >= 0, tokens.gather(1, source.clamp(min=0)), source)
    if positions is not None:
        moved = positions.expand(len(tokens), -1).gather(1, source.clamp(min=0)) + length
        positions = torch.where(source >= 0, moved, -1 - source)
    hidden, auxiliary = forward(extended, positions, put.lengths, keys, cache)
    columns = to_device(put.columns, tokens.device).expand(len(tokens), -1)
    return hidden.gather(1, columns[..., None].expand(-1, -1, hidden.shape[-1])), auxiliary
