"""Multi-head attention (Vaswani et al. 2017) with any number of key-value heads (GQA, arXiv 2305.13245)."""

from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model import config
from hornbook.model.attend import attend
from hornbook.model.context import Context
from hornbook.model.cpu.heads import SplitHeads
from hornbook.model.cpu.team import supports
from hornbook.model.linear import Linear, fused_linear
from hornbook.model.norm import RMSNorm
from hornbook.model.position import rotate


class FullAttention(nn.Module):
    """Each position sees every earlier one of its document. The number of heads follows from the tensors' widths."""

    def __init__(self, cfg: config.ModelConfig, layer: int) -> None:
        super().__init__()
        part, width = cfg.attention, cfg.width
        self.layer, self.head_dim = layer, cfg.head_dim
        self.query = Linear(width, cfg.heads * cfg.head_dim, part.bias)
        self.key = Linear(width, cfg.kv_heads * cfg.head_dim, part.bias)
        self.value = Linear(width, cfg.kv_heads * cfg.head_dim, part.bias)
        self.out = Linear(cfg.heads * cfg.head_dim, width, part.out_bias)
        norm = config.RMSNorm(eps=cfg.norm.eps)
        self.query_norm = RMSNorm(cfg.head_dim, norm) if part.qk_norm else None
        self.key_norm = RMSNorm(cfg.head_dim, norm) if part.qk_norm else None

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        query, key, value = self._project(x, context)
        if context.cache is not None:
            key, value = context.cache.append(self.layer, key, value)
        return self.out(attend(query, key, value, context.lengths).transpose(1, 2).flatten(2))

    def _project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, time, head_dim], normalised and rotated."""
        layers = [self.query, self.key, self.value]
        counts = [layer.weight.shape[0] // self.head_dim for layer in layers]
        fused = fused_linear(x, layers)
        if self.query_norm is None and context.rotation is not None and supports(fused):
            return SplitHeads.apply(fused, (counts[0], counts[1]), *context.rotation)
        query, key, value = fused.unflatten(-1, (-1, self.head_dim)).transpose(1, 2).split(counts, dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if context.rotation is not None:
            query, key = rotate(query, context.rotation), rotate(key, context.rotation)
        return query, key, value
