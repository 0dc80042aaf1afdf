"""What every block of one forward pass shares: rotations, who sees whom, dropout keys, cache, scores by distance."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor

from hornbook.model.attention.cache import KVCache
from hornbook.model.attention.mask import Pieces, Sight
from hornbook.model.attention.position import Rope, Rotation

Auxiliary = dict[str, Tensor]
"""By name, what layers say beside the hidden states: losses of each row [batch], loads of experts [experts]."""


@dataclass(frozen=True)
class Memory:
    """What an encoder gave, for a decoder to look at."""

    states: Float[Tensor, "batch time width"]
    lengths: Pieces | None = None
    """Pieces of each row; the k-th piece of the decoder's row looks at the k-th of these."""


@dataclass(frozen=True)
class Context:
    """Made once per stack and forward by the Transformer, read by the blocks, never written."""

    rotations: Mapping[Rope, Rotation] = field(default_factory=dict)
    """Angles of the positions, for every kind of rotary positions that a layer of the stack has."""
    sight: Sight = field(default_factory=Sight)
    """Who sees whom."""
    keys: Int[Tensor, " batch"] | None = None
    """Dropout keys (`hornbook.model.layers.dropout.row_keys`); None means no dropout."""
    cache: KVCache | None = None
    """Keys and values of earlier calls."""
    bias: Float[Tensor, "heads distances"] | None = None
    """Scores by distance (`hornbook.model.attention.attend.Bias`), if the stack's positions are of that kind."""
    memory: Memory | None = None
    """What the layers of a decoder look at besides."""
    counted: Bool[Tensor, "batch time"] | None = None
    """Tokens that statistics of experts are made of, because they are not padding; None: all."""

    def rotation(self, rope: Rope | None) -> Rotation | None:
        """The rotation of a layer's positions; None where they do not turn."""
        return None if rope is None else self.rotations[rope]
