"""One Transformer, by composition: embedding, blocks, norm, head; every part chosen by the config's `kind`.

A `Stack` is what an encoder and a decoder have in common. The Transformer is a stack with ends: an encoder (every
position sees its whole document), a decoder (each sees what came before), or a decoder that also looks at an encoder.
The ends are optional and the blocks live in a ModuleDict, so a pipeline stage is the same model with blocks deleted
and names kept. The model is plain PyTorch: it knows no device, no rank, no mesh.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hornbook.model.attention.cache import KVCache
from hornbook.model.attention.mask import Pieces, Sight
from hornbook.model.attention.position import (
    LearnedPositions,
    Lengths,
    Rope,
    SinusoidalPositions,
    check_length,
    document_positions,
)
from hornbook.model.context import Auxiliary, Context, Memory
from hornbook.model.heads.head import Head
from hornbook.model.layers.dropout import Dropout
from hornbook.model.layers.embedding import Embedding, Entrance


class Source(NamedTuple):
    """What the encoder of an encoder-decoder reads."""

    tokens: Int[Tensor, "batch time"]
    positions: Int[Tensor, "batch time"] | None = None
    lengths: Lengths | None = None
    """Documents of each row; the k-th document of a row's target looks at the k-th of its source."""
    counted: Bool[Tensor, "batch time"] | None = None
    """Tokens that statistics of experts are made of; None: all."""


class Stack(nn.Module):
    """Positions, blocks and the norm at their end."""

    def __init__(
        self,
        *,
        kind: Literal["causal", "both"],
        embedding: Embedding | None = None,
        positions: LearnedPositions | SinusoidalPositions | None,
        bias: nn.Module | None,
        entrance: Entrance | None,
        dropout: Dropout,
        blocks: dict[str, nn.Module],
        norm: nn.Module | None,
    ) -> None:
        super().__init__()
        self.kind: Literal["causal", "both"] = kind
        self.embedding = embedding  # first, for parameters are summed over in the order they are named here
        self.positions, self.bias = positions, bias
        self.entrance, self.dropout = entrance, dropout
        self.blocks = nn.ModuleDict(blocks)
        self.norm = norm
        ropes = (getattr(module, "rope", None) for module in self.blocks.modules())
        self.ropes = {rope for rope in ropes if isinstance(rope, Rope)}
        """Each kind of rotary positions that some layer has."""

    def place(
        self, tokens: Tensor, positions: Tensor | None, lengths: Lengths | None, start: int
    ) -> Int[Tensor, "rows time"]:
        """Positions given, or the natural ones; one row stands for all where all rows agree."""
        if positions is not None:
            return positions
        if lengths is not None:
            return document_positions(lengths, tokens.device)
        if self.positions is not None:
            check_length(start + tokens.shape[1], self.positions.length)
        return torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]

    def enter(
        self, x: Float[Tensor, "batch time vector"], positions: Tensor, types: Tensor | None, dtype: torch.dtype
    ) -> Float[Tensor, "batch time width"]:
        """From embedded tokens to what the first block reads, before dropout."""
        added = None if self.positions is None else self.positions(positions)
        if self.entrance is not None:
            return self.entrance(x, added, types).to(dtype)
        return (x if added is None else x + added).to(dtype)

    def climb(
        self, x: Float[Tensor, "batch time width"], context: Context
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        """Through all blocks and the norm; what layers say besides is summed by name."""
        auxiliary: Auxiliary = {}
        for block in self.blocks.values():
            x, found = block(x, context)
            add_auxiliary(auxiliary, found)
        return (x if self.norm is None else self.norm(x)), auxiliary


def as_pieces(lengths: Lengths | None) -> Pieces | None:
    """The same, hashable."""
    return None if lengths is None else tuple(tuple(row) for row in lengths)


def add_auxiliary(total: Auxiliary, found: Auxiliary) -> None:
    """Add by name."""
    for name, value in found.items():
        total[name] = total[name] + value if name in total else value


class Transformer(Stack):
    """A stack between an embedding and a head; `head` gives losses and logits of its hidden states."""

    def __init__(self, *, head: Head | None, encoder: Stack | None = None, **stack: Any) -> None:
        super().__init__(**stack)
        self.compute_dtype = torch.float32
        """Dtype of activations and matrix products; parameters are always float32."""
        self.encoder = encoder
        self.head = head

    def all_blocks(self) -> Iterator[nn.Module]:
        """Every block of both stacks, the encoder's first."""
        if self.encoder is not None:
            yield from self.encoder.blocks.values()
        yield from self.blocks.values()

    def forward(
        self,
        tokens: Int[Tensor, "batch time"] | Float[Tensor, "batch time width"],
        positions: Int[Tensor, "batch time"] | None = None,
        lengths: Lengths | None = None,
        keys: Int[Tensor, " batch"] | None = None,
        cache: KVCache | None = None,
        *,
        prefixes: Lengths | None = None,
        types: Int[Tensor, "batch time"] | None = None,
        source: Source | None = None,
        memory: Memory | None = None,
        counted: Bool[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        """Hidden states (of `compute_dtype`), and what layers say besides by name (losses of each row of experts).

        tokens: ids; or, in a model without embedding, the hidden states of the stage before.
        positions: place of each token in its document; by default counted from `cache.length`, anew in each document.
        lengths: documents of each row that attention is confined to; None sees the whole row.
        keys: dropout keys from `row_keys`; None turns dropout off.
        cache: continue behind what it holds, and add to it.
        prefixes: of each document, how many tokens at its begin all see one another (prefix language model).
        types: token types (BERT's segments); by default all 0.
        source, memory: what an encoder-decoder answers to, as tokens or as `encode` gave it.
        counted: tokens that are not padding, of which statistics of experts are made; None: all.
        """
        assert cache is None or lengths is None, "a cache continues one document per row"
        assert (source is None and memory is None) == (self.encoder is None), "an encoder-decoder needs its source"
        auxiliary: Auxiliary = {}
        if source is not None:
            memory, auxiliary = self._encode(source, keys)
        x, context = self._begin(self, tokens, positions, lengths, keys, cache, prefixes, types, memory, counted)
        x, found = self.climb(x, context)
        add_auxiliary(auxiliary, found)
        if cache is not None:
            cache.advance(x.shape[1])
        return x, auxiliary

    def encode(self, source: Source) -> Memory:
        """The encoder's states, once for all steps of a generation."""
        return self._encode(source, None)[0]

    def _encode(self, source: Source, keys: Tensor | None) -> tuple[Memory, Auxiliary]:
        assert self.encoder is not None
        places = source.positions, source.lengths
        x, context = self._begin(self.encoder, source.tokens, *places, keys, counted=source.counted)
        x, auxiliary = self.encoder.climb(x, context)
        return Memory(x, as_pieces(source.lengths)), auxiliary

    def _begin(
        self,
        stack: Stack,
        tokens: Tensor,
        positions: Tensor | None,
        lengths: Lengths | None,
        keys: Tensor | None,
        cache: KVCache | None = None,
        prefixes: Lengths | None = None,
        types: Tensor | None = None,
        memory: Memory | None = None,
        counted: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Context]:
        """What the first block of a stack reads."""
        start = 0 if cache is None else cache.length
        positions = stack.place(tokens, positions, lengths, start)
        context = Context(
            rotations={rope: rope.rotation(positions) for rope in stack.ropes},
            sight=Sight(stack.kind, as_pieces(lengths), prefixes=as_pieces(prefixes)),
            keys=keys,
            cache=cache,
            bias=None if stack.bias is None else stack.bias(start + tokens.shape[1], tokens.device),
            memory=memory,
            counted=counted,
        )
        if self.embedding is None:
            return tokens, context
        x = stack.enter(self.embedding(tokens), positions, types, self.compute_dtype)
        return stack.dropout(x, context), context
