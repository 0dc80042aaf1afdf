"""What every block of one forward pass shares: the rotation, who may see whom, dropout keys, the cache."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from hornbook.model.cache import KVCache
from hornbook.model.position import Lengths, Rotation

Auxiliary = dict[str, Tensor]
"""Named scalars beside the hidden states (losses of routers and the like)."""


@dataclass(frozen=True)
class Context:
    """Made once per forward by the Transformer, read by the blocks, never written."""

    rotation: Rotation | None = None
    """Rotary positions, if the model has them."""
    lengths: Lengths | None = None
    """Documents that attention is confined to; None sees the whole row."""
    keys: Int[Tensor, " batch"] | None = None
    """Dropout keys (`hornbook.model.dropout.row_keys`); None means no dropout."""
    cache: KVCache | None = None
    """Keys and values of earlier calls."""
