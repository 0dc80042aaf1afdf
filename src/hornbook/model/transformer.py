"""One Transformer, by composition: embedding, blocks, norm, head; every part chosen by the config's `kind`.

The ends are optional and the blocks live in a ModuleDict, so a pipeline stage is the same model with blocks deleted
and names kept. The model is plain PyTorch: it knows no device, no rank, no mesh.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model.cache import KVCache
from hornbook.model.context import Auxiliary, Context
from hornbook.model.dropout import Dropout
from hornbook.model.embedding import Embedding
from hornbook.model.head import Head
from hornbook.model.position import LearnedPositions, Lengths, Rope, check_length, document_positions


class Transformer(nn.Module):
    """A stack of blocks between an embedding and a norm; `head` gives losses and logits of its hidden states."""

    def __init__(
        self,
        embedding: Embedding | None,
        positions: LearnedPositions | Rope | None,
        dropout: Dropout,
        blocks: dict[str, nn.Module],
        norm: nn.Module | None,
        head: Head | None,
    ) -> None:
        super().__init__()
        self.compute_dtype = torch.float32
        """Dtype of activations and matrix products; parameters are always float32."""
        self.embedding = embedding
        self.positions = positions if isinstance(positions, nn.Module) else None
        self.rope = positions if isinstance(positions, Rope) else None
        self.dropout = dropout
        self.blocks = nn.ModuleDict(blocks)
        self.norm = norm
        self.head = head

    def forward(
        self,
        tokens: Int[Tensor, "batch time"] | Float[Tensor, "batch time width"],
        positions: Int[Tensor, "batch time"] | None = None,
        lengths: Lengths | None = None,
        keys: Int[Tensor, " batch"] | None = None,
        cache: KVCache | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        """Hidden states (of `compute_dtype`) and named auxiliary scalars.

        tokens: ids; or, in a model without embedding, the hidden states of the stage before.
        positions: place of each token in its document; by default counted from `cache.length`, anew in each document.
        lengths: documents of each row that attention is confined to; None sees the whole row before a token.
        keys: dropout keys from `row_keys`; None turns dropout off.
        cache: continue behind what it holds, and add to it.
        """
        assert cache is None or lengths is None, "a cache continues one document per row"
        positions = self._positions(tokens, positions, lengths, cache)
        rotation = None if self.rope is None else self.rope.rotation(positions)
        context = Context(rotation, lengths, keys, cache)
        x = self._embed(tokens, positions, context)
        auxiliary: Auxiliary = {}
        for block in self.blocks.values():
            x, found = block(x, context)
            for name, value in found.items():
                auxiliary[name] = auxiliary[name] + value if name in auxiliary else value
        if cache is not None:
            cache.advance(x.shape[1])
        return (x if self.norm is None else self.norm(x)), auxiliary

    def _positions(
        self, tokens: Tensor, positions: Tensor | None, lengths: Lengths | None, cache: KVCache | None
    ) -> Int[Tensor, "rows time"]:
        """Positions given, or the natural ones; one row stands for all where all rows agree."""
        if positions is not None:
            return positions
        if lengths is not None:
            return document_positions(lengths, tokens.device)
        start = 0 if cache is None else cache.length
        if self.positions is not None:
            check_length(start + tokens.shape[1], self.positions.weight.shape[0])
        return torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]

    def _embed(self, tokens: Tensor, positions: Tensor, context: Context) -> Float[Tensor, "batch time width"]:
        if self.embedding is None:
            return tokens
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(positions)
        return self.dropout(x.to(self.compute_dtype), context)
