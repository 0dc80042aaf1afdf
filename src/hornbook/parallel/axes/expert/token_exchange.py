"""Rows that travel between the ranks of one axis: all-to-all with parts of any size, and with gradients.

Each rank sends some of its rows to every rank, itself included; a part may be empty. All know the whole table of sizes,
so a rank knows what it gets. The way back is the same with the table transposed, and it is also the way of gradients:
`there` and `back` are each other's transposes (adjoints).
"""

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.parallel.world import Axis, World

Table = list[list[int]]
"""Rows that rank i sends to rank j, at [i][j]."""


class Exchange:
    """The ranks that differ along one axis, as one of them sees them. All make the same calls in the same order."""

    def __init__(self, world: World, axis: Axis) -> None:
        self._world = world
        self._axes: list[Axis] = [axis]
        self.size, self.rank = world.axis_size(self._axes), world.axis_rank(self._axes)
        self.gathers = False
        """All parts are brought to all ranks, each of which takes its own: the back-end has no all-to-all."""

    def tell(self, numbers: Tensor) -> Tensor:
        """int64 [n] of each rank -> [ranks, n]."""
        return torch.stack(self._world.all_gather(numbers, self._axes))

    def there(self, rows: Tensor, table: Table) -> Tensor:
        """[rows to rank 0, rows to rank 1, ...] -> [rows from rank 0, rows from rank 1, ...], along dim 0."""
        return self._send(rows, table)

    def back(self, rows: Tensor, table: Table) -> Tensor:
        """What `there` returned, in its order -> the rows in the order in which they were sent."""
        return self._send(rows, [list(column) for column in zip(*table, strict=True)])

    def _send(self, rows: Tensor, table: Table) -> Tensor:
        sends, receives = table[self.rank], [line[self.rank] for line in table]
        assert len(rows) == sum(sends), f"{len(rows)} rows, and {sum(sends)} are announced"
        received = rows.new_empty(sum(receives), *rows.shape[1:])
        if not self.gathers:
            try:
                leaving = (len(rows) - sends[self.rank]) * rows[:1].nbytes
                with self._world.collective(self._axes, "all-to-all", rows.nbytes, leaving):
                    dist.all_to_all_single(
                        received, rows.contiguous(), receives, sends, group=self._world.group(self._axes)
                    )
                return received
            except RuntimeError as error:
                if "support" not in str(error):  # "Backend NAME does not support alltoall_base", on all ranks alike
                    raise
                self.gathers = True
        return self._gather(rows, table)

    def _gather(self, rows: Tensor, table: Table) -> Tensor:
        padded = rows.new_zeros(max(map(sum, table)), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = []
        for line, sent in zip(table, self._world.all_gather(padded, self._axes), strict=True):
            first = sum(line[: self.rank])
            parts.append(sent[first : first + line[self.rank]])
        return torch.cat(parts)
