"""One layer: attention and MLP, and in the decoder of an encoder-decoder attention to the encoder between them.

Every sublayer f adds to the residual stream x in one way, with norms in up to three places:

    x = sum_norm(x + out_norm(f(norm(x))))

`norm` alone is pre-norm (GPT-2, LLaMA), `sum_norm` alone post-norm (BERT), `out_norm` alone is OLMo 2's, `norm` with
`out_norm` is Gemma 2's sandwich. `ParallelBlock` adds attention and MLP of the same x at once (GPT-NeoX, GPT-J).
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.forward_context import Auxiliary, Context
from hornbook.model.layers.dropout import Dropout, RowDropout

Stream = Float[Tensor, "batch time width"]


class Norms(NamedTuple):
    """Norms around one sublayer; None leaves its place empty."""

    before: nn.Module | None = None
    out: nn.Module | None = None
    sum: nn.Module | None = None


class ResidualAdd(nn.Module):
    """`x + multiplier * y`, with dropout of values and of whole rows of y."""

    def __init__(self, dropout: Dropout, rows: RowDropout, multiplier: float) -> None:
        super().__init__()
        self.dropout, self.rows, self.multiplier = dropout, rows, multiplier

    def forward(self, x: Stream, y: Stream, context: Context) -> Stream:
        y = self.rows(self.dropout(y, context), context)
        return x + y if self.multiplier == 1 else x + self.multiplier * y


def call_mlp(mlp: nn.Module, x: Stream, context: Context) -> tuple[Stream, Auxiliary]:
    """The MLP's output; a mixture of experts needs the context and also gives auxiliary losses."""
    return mlp(x, context) if getattr(mlp, "auxiliary", False) else (mlp(x), {})


class Block(nn.Module):
    """Attention, then attention to the encoder if there is one, then the MLP."""

    def __init__(
        self,
        config: ModelConfig,
        attention: nn.Module,
        mlp: nn.Module,
        norms: tuple[Norms, Norms],
        residual_adds: tuple[ResidualAdd, ResidualAdd],
        cross: tuple[nn.Module, Norms, ResidualAdd] | None = None,
    ) -> None:
        """config: of this layer."""
        super().__init__()
        self.config = config
        self.norm1, self.out_norm1, self.sum_norm1 = norms[0]
        self.attention = attention
        self.add1 = residual_adds[0]
        if cross is not None:
            self.cross_norm, self.cross_out_norm, self.cross_sum_norm = cross[1]
            self.cross_add = cross[2]
        self.cross = None if cross is None else cross[0]
        self.norm2, self.out_norm2, self.sum_norm2 = norms[1]
        self.mlp = mlp
        self.add2 = residual_adds[1]

    def forward(self, x: Stream, context: Context) -> tuple[Stream, Auxiliary]:
        norms = Norms(self.norm1, self.out_norm1, self.sum_norm1)
        x, _ = _sublayer(x, lambda h: (self.attention(h, context), {}), norms, self.add1, context)
        cross = self.cross
        if cross is not None:
            norms = Norms(self.cross_norm, self.cross_out_norm, self.cross_sum_norm)
            x, _ = _sublayer(x, lambda h: (cross(h, context), {}), norms, self.cross_add, context)
        norms = Norms(self.norm2, self.out_norm2, self.sum_norm2)
        return _sublayer(x, lambda h: call_mlp(self.mlp, h, context), norms, self.add2, context)


def _sublayer(
    x: Stream, act: Callable[[Stream], tuple[Stream, Auxiliary]], norms: Norms, add: ResidualAdd, context: Context
) -> tuple[Stream, Auxiliary]:
    """Sublayer `act` with its norms, added to the residual stream; and its auxiliary values."""
    y, auxiliary = act(x if norms.before is None else norms.before(x))
    x = add(x, y if norms.out is None else norms.out(y), context)
    return (x if norms.sum is None else norms.sum(x)), auxiliary


class ParallelBlock(nn.Module):
    """`x + attention(norm1(x)) + mlp(norm2(x))`; without `norm2` both read norm1."""

    def __init__(
        self,
        config: ModelConfig,
        attention: nn.Module,
        mlp: nn.Module,
        norms: tuple[nn.Module, nn.Module | None],
        residual_adds: tuple[ResidualAdd, ResidualAdd],
    ) -> None:
        super().__init__()
        self.config = config
        self.norm1, self.attention, self.add1 = norms[0], attention, residual_adds[0]
        self.norm2, self.mlp, self.add2 = norms[1], mlp, residual_adds[1]

    def forward(self, x: Stream, context: Context) -> tuple[Stream, Auxiliary]:
        first = self.norm1(x)
        attended = self.attention(first, context)
        fed, auxiliary = call_mlp(self.mlp, first if self.norm2 is None else self.norm2(x), context)
        return self.add2(self.add1(x, attended, context), fed, context), auxiliary
