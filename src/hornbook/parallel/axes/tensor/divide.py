"""Parameters of a rank of the axis `tensor`: slices of the whole ones, in their place and under their names."""

from typing import NamedTuple

from torch import nn

from hornbook.errors import UsageError
from hornbook.model.config.part import Cut, Unit
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

    def cut(self, name: str, cut: Cut) -> None:
        """Cut a parameter. Raises UsageError where the model has no such one."""
        path, _, own = name.rpartition(".")
        try:
            module, parameter = self._model.get_submodule(path), self._model.get_parameter(name)
        except AttributeError:
            module = parameter = None
        if module is None or parameter is None or parameter.shape[cut.dim] % cut.units:
            raise UsageError(
                f"parallel.tensor: the model has no {name} of {cut.units} {cut.unit.replace('_', ' ')}, as that part "
                "says: correct its `weights`, or leave parallel.tensor 1"
            )
        mine, size = self.portion(cut.units, cut.unit, name), parameter.shape[cut.dim] // cut.units
        if cut.unit == "kv_heads" and cut.units < self._ranks:
            self.copies[name] = mine.first, cut.units
        shape = tuple(parameter.shape)
        known = self._divisions.get(name) or Division(shape, (0,) * len(shape), ())
        start = tuple(first + size * mine.first * (each == cut.dim) for each, first in enumerate(known.start))
        axes: list[Axis] = [axis for axis in AXES if axis == "tensor" or axis in known.axes]
        self._divisions[name] = Division(known.shape, start, tuple(axes), mine.copy)
        value = parameter.detach().narrow(cut.dim, size * mine.first, size * (mine.last - mine.first)).clone()
        module.register_parameter(own, nn.Parameter(value, requires_grad=parameter.requires_grad))
        self.cut_names.add(name)
