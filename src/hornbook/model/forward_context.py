"""What every block of one forward pass shares: rotations, attention mask, dropout keys, cache, scores by distance."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor

from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.attention.mask import AttentionMask, DocumentLengths, RowPart
from hornbook.model.attention.position import Rope, Rotation

Auxiliary = dict[str, Tensor]
"""Auxiliary values of layers by name: losses of each row [batch], loads of experts [experts]."""


@dataclass(frozen=True)
class Memory:
    """Output of an encoder, which a decoder attends to."""

    states: Float[Tensor, "batch time width"]
    lengths: DocumentLengths | None = None
    """Document lengths of each row; the k-th document of the decoder's row attends to the k-th of these."""
    part: RowPart | None = None
    """Which positions of each row are here; None: all."""


@dataclass(frozen=True)
class Prefix:
    """Positions whose keys and values are trained (`hornbook.model.surgery.adapters.prefix`)."""

    numbers: Int[Tensor, "batch time"]
    """Of the key and the value that stand there, from 0; negative at tokens."""
    states: Float[Tensor, "length hidden"] | None
    """What layers make keys and values of; None: they have their own."""


@dataclass(frozen=True)
class Context:
    """Made once per stack and forward by the Transformer, read by the blocks, never written."""

    rotations: Mapping[str, Rotation] = field(default_factory=dict)
    """Angles of the positions, for every kind of rotary positions that a layer of the stack has, by `Rope.name`."""
    mask: AttentionMask = field(default_factory=AttentionMask)
    """Which keys each query sees."""
    keys: Int[Tensor, " batch"] | None = None
    """Dropout keys (`hornbook.model.layers.dropout.row_keys`); None means no dropout."""
    cache: KVCache | None = None
    """Keys and values of earlier calls."""
    bias: Float[Tensor, "heads distances"] | None = None
    """Scores by distance (`hornbook.model.attention.tiled_attention.Scoring`), where the positions are of that kind."""
    memory: Memory | None = None
    """Encoder output that the layers of a decoder attend to."""
    cross: AttentionMask | None = None
    """Which of its positions each query sees."""
    token_mask: Bool[Tensor, "batch time"] | None = None
    """True for tokens that are not padding, of which statistics of experts are made; None: all."""

    prefix: Prefix | None = None
    """Where trained keys and values stand; None: nowhere."""

    def rotation(self, rope: Rope | None) -> Rotation | None:
        """The rotation of a layer's positions; None where they do not turn."""
        return None if rope is None else self.rotations[rope.name]
