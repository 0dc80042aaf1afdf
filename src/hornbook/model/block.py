"""One layer: attention and MLP, each behind a norm and added to the residual stream (pre-norm, as GPT-2)."""

from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model.context import Auxiliary, Context
from hornbook.model.dropout import Dropout


class Block(nn.Module):
    """`x + attention(norm1(x))`, then `x + mlp(norm2(x))`, with dropout on what is added."""

    def __init__(
        self,
        norm1: nn.Module,
        attention: nn.Module,
        norm2: nn.Module,
        mlp: nn.Module,
        dropouts: tuple[Dropout, Dropout],
    ) -> None:
        super().__init__()
        self.norm1, self.attention = norm1, attention
        self.norm2, self.mlp = norm2, mlp
        self.dropout1, self.dropout2 = dropouts

    def forward(
        self, x: Float[Tensor, "batch time width"], context: Context
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        x = x + self.dropout1(self.attention(self.norm1(x), context), context)
        x = x + self.dropout2(self.mlp(self.norm2(x)), context)
        return x, {}
