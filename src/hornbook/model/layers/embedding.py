"""From token ids to vectors."""

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model.layers.linear import Linear


class Embedding(nn.Module):
    """`weight` [vocab, width]: one vector per token."""

    role: ClassVar = "embedding"

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        return nn.functional.embedding(tokens, self.weight)


class Mixing(NamedTuple):
    """Other tokens whose vectors are mixed with those of a batch."""

    tokens: Int[Tensor, "batch time"]
    shares: Float[Tensor, "batch time"]
    """How much of a token's own vector stays."""

    def of(self, embedding: Embedding, vectors: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """share * vectors + (1 - share) * those of the other tokens."""
        shares = self.shares[..., None].to(vectors.dtype)
        return shares * vectors + (1 - shares) * embedding(self.tokens)


class TokenTypes(Embedding):
    """`weight` [types, width]: one vector per kind of token (BERT's two sentences)."""

    role: ClassVar = "position"


class InputLayers(nn.Module):
    """Layers of a stack between token vectors and its first block, but for dropout.

    `scale * vectors`, projected to the width of the model if theirs is another, plus positions and token types,
    normalised; or projected last.
    """

    def __init__(
        self,
        scale: float,
        project: Linear | None,
        types: TokenTypes | None,
        norm: nn.Module | None,
        *,
        projected_last: bool = False,
    ) -> None:
        super().__init__()
        self.scale, self.project, self.types, self.norm = scale, project, types, norm
        self.projected_last = projected_last

    def forward(
        self,
        x: Float[Tensor, "batch time vector"],
        added: Float[Tensor, "rows time width"] | None,
        types: Int[Tensor, "batch time"] | None,
    ) -> Float[Tensor, "batch time width"]:
        if self.scale != 1:
            x = x * self.scale
        if self.project is not None and not self.projected_last:
            x = self.project(x)
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        if added is not None:
            x = x + added
        x = x if self.norm is None else self.norm(x)
        return self.project(x) if self.project is not None and self.projected_last else x
