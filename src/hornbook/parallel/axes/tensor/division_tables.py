"""Which parameters are divided over the ranks of the axis `tensor`, by globs over their names within a part.

The first product of a pair is divided by outputs (`rows` of its weight and its bias), the second by inputs (`columns`),
so that between them nothing crosses ranks. What no table names, each rank holds whole: norms, biases that are added
once, routers, the projections down to latents, and parts that have no table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["heads", "kv_heads", "hidden", "vocabulary"]
"""What is not cut through: a head; a key-value head, which several ranks hold where there are more ranks than heads;
one value of the inner width of an MLP; a token."""


Cuts = Mapping[str, tuple[int, Unit]]
"""Glob over names of parameters -> the dim that is divided, and by what."""


@dataclass(frozen=True)
class Table:
    """How a kind of part is divided."""

    cuts: Cuts
    enters: tuple[str, ...] = ()
    """Linear layers whose input goes to all ranks: it is the same on each, and each uses it for other outputs."""
    remembers: tuple[str, ...] = ()
    """The same, of which the input is an encoder's whole output, however the residual stream is divided."""
    leaves: tuple[str, ...] = ()
    """Linear layers whose product is summed over ranks."""
    whole_time: bool = False
    """Whether the part needs whole rows and gives them, where the residual stream is divided by time."""


_HEADS: Cuts = {
    "query.*": (0, "heads"),
    "key.*": (0, "kv_heads"),
    "value.*": (0, "kv_heads"),
    "out.weight": (1, "heads"),
}
_LATENT: Cuts = {"kv_up.weight": (0, "heads"), "out.weight": (1, "heads")}

TABLES: dict[str, Table] = {
    "FullAttention": Table(_HEADS, enters=("query", "key", "value"), leaves=("out",)),
    "CrossAttention": Table(_HEADS, enters=("query",), remembers=("key", "value"), leaves=("out",)),
    "LatentAttention": Table(
        {**_LATENT, "query_up.weight": (0, "heads")}, enters=("query_up",), leaves=("out",), whole_time=True
    ),
    "MLP": Table({"up.*": (0, "hidden"), "down.weight": (1, "hidden")}, enters=("up",), leaves=("down",)),
    "GLU": Table(
        {"gate.*": (0, "hidden"), "up.*": (0, "hidden"), "down.weight": (1, "hidden")},
        enters=("gate", "up"),
        leaves=("down",),
    ),
    "Experts": Table({"gate": (1, "hidden"), "up": (1, "hidden"), "down": (2, "hidden")}, whole_time=True),
    "RelativeBuckets": Table({"weight": (1, "heads")}),
    "Embedding": Table({"weight": (0, "vocabulary")}),
    "Head": Table({"weight": (0, "vocabulary")}),
}
"""Class of a part -> its table."""

DIRECT_LATENT = Table({**_LATENT, "query.weight": (0, "heads")}, enters=("query",), leaves=("out",), whole_time=True)
"""Of `LatentAttention` whose queries have no latent."""
FULL_NORMS = Table({"query_norm.weight": (0, "heads"), "key_norm.weight": (0, "kv_heads")})
"""Norms over all heads together."""
SINKS = Table({"sinks": (0, "heads")})
BIAS = Table({"bias": (0, "vocabulary")})
"""A shift of each token's logit."""
