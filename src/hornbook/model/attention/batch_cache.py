"""Keys and values of texts of different lengths that are continued together: texts join and leave between steps.

Each text has a row of the buffers, filled from column 0; the rows in use are the first ones, so that a step computes
these alone. A text joins with what a `KVCache` of one row holds of it, and gives its row up when it leaves: the last
row moves there. Use:

    row = cache.join(alone)                                          # what `alone` holds of one text
    hidden, _ = model(tokens, positions=cache.positions(), cache=cache)    # [rows, 1], one token of each text
    cache.leave(row)
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hornbook.model.attention.key_tables import KeyTables
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.cpu.cached import takes, write_columns
from hornbook.model.layers.transfer import to_device

COLUMNS = 64
"""Columns that a step reads are a multiple of it: sums over keys fall into the same parts whatever else is there."""


class BatchCache(KVCache):
    """A `KVCache` whose rows have lengths of their own; a call of the model adds one position to each.

    Buffers grow by doubling up to `capacity` columns. `length` is that of the longest text.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__()
        self.lengths: list[int] = []
        """Positions that each row holds."""
        self.rows, self._most = rows, -(-capacity // COLUMNS) * COLUMNS
        self._capacity = min(self._capacity, self._most)
        self._recurrent: dict[int, tuple[Tensor, ...]] = {}
        """Of each recurrent layer, its states [rows, ...]."""
        self._at = self._row_numbers = torch.empty(0, dtype=torch.int64)

    def join(self, alone: KVCache) -> int:
        """Take up what a cache of one row holds; returns the number of the new row, the last one."""
        row = len(self.lengths)
        assert row < self.rows, "every row is taken"
        for layer, parts in alone.held().items():
            self._reserve(layer, parts, alone.length)
            for buffer, part in zip(self._buffers[layer], parts, strict=True):
                buffer[row, :, : alone.length] = part[0]
        for layer, state in alone.states().items():
            old = self._recurrent.get(layer) if row else None
            self._recurrent[layer] = state if old is None else tuple(map(_stacked, old, state))
        self._set_lengths([*self.lengths, alone.length])
        return row

    def leave(self, row: int) -> None:
        """Give up a row; the last one gets its number."""
        last = len(self.lengths) - 1
        if row != last:
            end = self.lengths[last]
            for buffers in self._buffers.values():
                for buffer in buffers:
                    buffer[row, :, :end] = buffer[last, :, :end]
        kept = [last if each == row else each for each in range(last)]
        self._recurrent = {layer: tuple(part[kept] for part in state) for layer, state in self._recurrent.items()}
        self._set_lengths([self.lengths[each] for each in kept])

    def positions(self) -> Int[Tensor, "rows 1"]:
        """Position of each row's next token."""
        return self._at[:, None]

    def append(
        self,
        layer: int,
        key: Float[Tensor, "rows kv_heads 1 head_dim"],
        value: Float[Tensor, "rows kv_heads 1 value_dim"],
    ) -> tuple[Float[Tensor, "rows kv_heads all head_dim"], Float[Tensor, "rows kv_heads all value_dim"]]:
        """Store the next position of each row in one layer; returns views of all rows in use, up to `columns`."""
        assert key.shape[2] == 1, "a batch of texts goes on by one token each"
        self._reserve(layer, (key, value), self.length + 1)
        keys, values = self._buffers[layer]
        if takes(key, value):
            write_columns((keys, values), (key, value), self._at)
        else:
            keys[self._row_numbers, :, self._at], values[self._row_numbers, :, self._at] = key[:, :, 0], value[:, :, 0]
        return keys[: len(key), :, : self.columns], values[: len(key), :, : self.columns]

    @property
    def columns(self) -> int:
        """Columns that the next step reads."""
        return min(-(-(self.length + 1) // COLUMNS) * COLUMNS, self._most)

    def recall(self, layer: int) -> tuple[Tensor, ...] | None:
        """States of a recurrent layer, one row for each text."""
        return self._recurrent[layer]

    def remember(self, layer: int, new: int, state: tuple[Tensor, ...]) -> None:
        """Keep the states of a layer after `new` more positions, which is one."""
        assert new == 1
        self._recurrent[layer] = state

    def advance(self, positions: int) -> None:
        """Count one more position of every row."""
        self._set_lengths([length + positions for length in self.lengths])

    def tables(self, window: int | None) -> KeyTables:
        """Which columns the next token of each row sees: those of its own text, of the last `window` positions."""
        ends = (self._at + 1).int()[:, None]
        starts = torch.zeros_like(ends) if window is None else (ends - window).clamp(min=0)
        return KeyTables(starts, ends, False, False, None, None, positions=self.positions())

    def _reserve(self, layer: int, parts: tuple[Tensor, Tensor], end: int) -> None:
        """Buffers of a layer [rows, kv_heads, columns, dim] with room for `end` columns, zero where nothing is held.

        What is masked must be a number all the same: zero times NaN is NaN.
        """
        old = self._buffers.get(layer)
        assert end <= self._most, f"{end} positions, but there are {self._most}"
        while self._capacity < end:
            self._capacity = min(2 * self._capacity, self._most)
        if old is not None and old[0].shape[2] == self._capacity:
            return
        shapes = [(self.rows, part.shape[1], self._capacity, part.shape[3]) for part in parts]
        keys, values = (part.new_zeros(shape) for part, shape in zip(parts, shapes, strict=True))
        if old is not None:
            keys[:, :, : old[0].shape[2]], values[:, :, : old[1].shape[2]] = old
        self._buffers[layer] = keys, values

    def _set_lengths(self, lengths: list[int]) -> None:
        self.lengths, self.length = lengths, max(lengths, default=0)
        held = [*self._buffers.values(), *self._recurrent.values()]  # some models have states alone
        device = held[0][0].device if held else torch.device("cpu")
        self._at = to_device(torch.tensor(lengths, dtype=torch.int64), device)
        self._row_numbers = torch.arange(len(lengths), device=device)


def _stacked(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat([old, new])
