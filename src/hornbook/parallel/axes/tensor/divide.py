"""Parameters of a rank of the axis `tensor`: slices of the whole ones, in their place and under their names."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn

from hornbook.errors import UsageError
from hornbook.parallel.axes.tensor.division_tables import Table, Unit
from hornbook.parallel.parameter_shard import Division, Divisions
from hornbook.parallel.world import AXES, Axis


class Portion(NamedTuple):
    """What a rank has of some number of things."""

    first: int
    last: int
    copy: int = 0
    """Number of this rank among those that have the same."""


def portion(count: int, ranks: int, rank: int, *, copies: bool = False) -> Portion:
    """Neighbours, as many as others have or one more; with `copies`, one that several ranks have."""
    if copies and count < ranks:
        first = rank * count // ranks
        return Portion(first, first + 1, rank % (ranks // count))
    share, over = divmod(count, ranks)
    first = rank * share + min(rank, over)
    return Portion(first, first + share + (rank < over))


class Divider:
    """Cuts the parameters of one model for one rank."""

    def __init__(self, model: nn.Module, ranks: int, rank: int, divisions: Divisions) -> None:
        self._model, self._ranks, self._rank, self._divisions = model, ranks, rank, divisions
        self.copies: dict[str, tuple[int, int]] = {}
        """Parameters that several ranks hold and use in their own ways -> which of how many different parts it is."""
        self.cut_names: set[str] = set()
        """All that were cut."""

    def portion(self, count: int, unit: Unit, name: str) -> Portion:
        """What this rank has of `count` units. UsageError where that is nothing, or a part of a head."""
        ranks = self._ranks
        even = unit in ("hidden", "vocabulary") or count % ranks == 0 or (unit == "kv_heads" and ranks % count == 0)
        if not even or (count < ranks and unit != "kv_heads"):
            raise UsageError(
                f"parallel.tensor: {count} {unit.replace('_', ' ')} of {name} do not divide among {ranks} ranks: take "
                "another number of ranks"
            )
        return portion(count, ranks, self._rank, copies=unit == "kv_heads")

    def cut(self, prefix: str, table: Table, counts: Mapping[str, int]) -> None:
        """Cut what a table names of the part at `prefix`. counts: how many there are of its units.

        Raises UsageError where a glob matches nothing.
        """
        part = self._model.get_submodule(prefix)
        own = [name for name, _ in part.named_parameters()]
        for glob, (dim, unit) in table.cuts.items():
            found = [name for name in own if fnmatchcase(name, glob)]
            if not found:
                raise UsageError(
                    f"parallel.tensor: {glob} of {type(part).__name__} matches no parameter of {prefix}, which has "
                    f"{', '.join(own)}: leave parallel.tensor 1 for this model"
                )
            for name in found:
                self._cut(f"{prefix}.{name}", dim, unit, counts)

    def _cut(self, name: str, dim: int, unit: Unit, counts: Mapping[str, int]) -> None:
        path, _, own = name.rpartition(".")
        module, parameter = self._model.get_submodule(path), self._model.get_parameter(name)
        length, shape = parameter.shape[dim], tuple(parameter.shape)
        count = counts.get(unit, length)
        mine, size = self.portion(count, unit, name), length // count
        if unit == "kv_heads" and count < self._ranks:
            self.copies[name] = mine.first, count
        known = self._divisions.get(name) or Division(shape, (0,) * len(shape), ())
        start = tuple(first + size * mine.first * (each == dim) for each, first in enumerate(known.start))
        axes: list[Axis] = [axis for axis in AXES if axis == "tensor" or axis in known.axes]
        self._divisions[name] = Division(known.shape, start, tuple(axes), mine.copy)
        value = parameter.detach().narrow(dim, size * mine.first, size * (mine.last - mine.first)).clone()
        module.register_parameter(own, nn.Parameter(value, requires_grad=parameter.requires_grad))
        self.cut_names.add(name)
