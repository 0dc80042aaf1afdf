"""Key-value cache: what attention has already seen, so that a new token costs one row of attention.

One cache serves one call of `generate`: every row of the batch has the same length (`batch_cache.py`: lengths of their
own). Use:

    cache = KVCache()
    hidden, _ = model(prompt, cache=cache)         # [b, t] tokens at positions 0 .. t-1
    hidden, _ = model(token, cache=cache)          # [b, 1] continues at position cache.length

`Transformer.forward` reads `cache.length` for the positions, each attention calls `append` with its layer, and
the Transformer calls `advance` once all layers have, so a failed forward leaves the cache as it was.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from hornbook.model.attention.key_tables import KeyTables


class KVCache:
    """Keys and values of every layer, grown by doubling: amortised one copy per token, at most twice the memory needed.

    It holds the layers that append to it: of a model that has some of the layers only, these under their own numbers.
    `capacity` reserves that many positions at once. Buffers take batch, heads, dtype and device from what is appended.
    """

    def __init__(self, capacity: int = 64) -> None:
        self.length = 0
        """Positions every layer holds."""
        self._capacity = max(capacity, 1)
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self.fixed: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of the encoder output in each layer of a decoder, once they are computed."""
        self._states: dict[int, dict[int, tuple[Tensor, ...]]] = {}
        """Of each layer, states by the number of positions they have seen."""

    def recall(self, layer: int) -> tuple[Tensor, ...] | None:
        """State of a recurrent layer after all `length` positions; None at the start."""
        if self.length == 0:
            return None
        assert self.length in self._states[layer], "a recurrent state goes back by one call at most"
        return self._states[layer][self.length]

    def remember(self, layer: int, new: int, state: tuple[Tensor, ...]) -> None:
        """Keep a layer's state after `new` more positions, and the one it was computed from."""
        kept = {at: old for at, old in self._states.get(layer, {}).items() if at == self.length}
        self._states[layer] = {**kept, self.length + new: state}

    def append(
        self,
        layer: int,
        key: Float[Tensor, "batch kv_heads new head_dim"],
        value: Float[Tensor, "batch kv_heads new value_dim"],
    ) -> tuple[Float[Tensor, "batch kv_heads all head_dim"], Float[Tensor, "batch kv_heads all value_dim"]]:
        """Store new positions of one layer after `length`; returns views of all `length + new` keys and values."""
        end = self.length + key.shape[-2]
        keys, values = self._room(layer, key, value, end)
        keys[:, :, self.length : end], values[:, :, self.length : end] = key, value
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, positions: int) -> None:
        """Count positions that every layer has appended."""
        self.length += positions

    def select(self, rows: Int[Tensor, " batch"]) -> None:
        """Keep these rows of the batch, in this order; one may be taken several times (beam search)."""
        self._buffers = {layer: (key[rows], value[rows]) for layer, (key, value) in self._buffers.items()}
        self.fixed = {layer: (key[rows], value[rows]) for layer, (key, value) in self.fixed.items()}
        for layer, states in self._states.items():
            self._states[layer] = {at: tuple(part[rows] for part in state) for at, state in states.items()}

    def held(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of each layer, [batch, kv_heads, length, dim]."""
        return {
            layer: (key[:, :, : self.length], value[:, :, : self.length])
            for layer, (key, value) in self._buffers.items()
        }

    def divided(self, lengths: Sequence[int]) -> list["KVCache"]:
        """One cache for each of the documents that lie behind one another in the one row of this one."""
        assert not self._states, "a recurrent state is that of the last document alone"
        assert sum(lengths) == self.length
        found, end = [KVCache(length) for length in lengths], 0
        for each, length in zip(found, lengths, strict=True):
            part = slice(end, end := end + length)
            each.length = length
            each._buffers = {
                layer: (key[:, :, part], value[:, :, part]) for layer, (key, value) in self._buffers.items()
            }
        return found

    def states(self) -> dict[int, tuple[Tensor, ...]]:
        """State of each recurrent layer after all `length` positions."""
        return {layer: states[self.length] for layer, states in self._states.items()}

    def tables(self, window: int | None) -> "KeyTables | None":
        """Which keys the next queries see, where the mask alone does not say it; None: those of one text each."""
        del window

    def _room(self, layer: int, key: Tensor, value: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """The buffers of a layer's keys and values [batch, kv_heads, capacity, dim], with room for `end` positions."""
        old = self._buffers.get(layer)
        if old is not None and old[0].shape[2] >= end:
            return old
        while self._capacity < end:
            self._capacity *= 2
        keys, values = (part.new_empty(*part.shape[:2], self._capacity, part.shape[3]) for part in (key, value))
        if old is not None:
            keys[:, :, : self.length], values[:, :, : self.length] = (part[:, :, : self.length] for part in old)
        self._buffers[layer] = keys, values
        return keys, values
