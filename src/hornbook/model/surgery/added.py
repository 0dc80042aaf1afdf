"""What surgery adds to a model and where: the base class of added modules, their first values, globs over layers."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.init.init import name_seed
from hornbook.model.layers.linear import Change, Linear


class Added(nn.Module):
    """A part that surgery hung on a model."""

    role: ClassVar[str] = "matrix"
    """Of its own parameters (`hornbook.model.build_model.parameter_roles`)."""
    cuts: ClassVar[Mapping[int, Mapping[str, int | None]]] = {}
    """Where ranks divide the weight that it hangs on, by outputs (0) or inputs (1): the dim along which each of its
    parameters is divided; None: it is whole on each rank. Without an entry it cannot be divided so."""
    sums: ClassVar[bool] = False
    """Whether what it adds to a product is summed over the ranks that divide the layer's inputs, with the product."""
    total: Change | None = None
    """Sums over ranks, where they divide the layer's inputs; the product that it then sees has no bias."""

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        """(parameter, value float32 on the CPU) of each of its parameters, inner ones too, before training.

        name: of this module, which with the seed keys what is random. weight: of the layer it hangs on, as products
        see it, or None where it hangs on none.
        """
        raise NotImplementedError


class Mergeable(Added):
    """A part on a linear layer that can be in its matrix and bias instead."""

    def merged(self, weight: Tensor) -> Tensor:
        """The one matrix that does what `weight` [outputs, inputs] and this do together."""
        raise NotImplementedError

    def merged_bias(self, bias: Tensor) -> Tensor:
        """The same of the bias [outputs]."""
        return bias


def keyed_uniform(shape: tuple[int, ...], bound: float, seed: int, name: str) -> Tensor:
    """U(-bound, bound), a pure function of (seed, name)."""
    generator = torch.Generator().manual_seed(name_seed(seed, name))
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def keyed_normal(shape: tuple[int, ...], std: float, seed: int, name: str) -> Tensor:
    """N(0, std), a pure function of (seed, name)."""
    generator = torch.Generator().manual_seed(name_seed(seed, name))
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def matching(names: Iterable[str], globs: Sequence[str], key: str, what: str) -> list[str]:
    """The names, in their order, that any of the globs matches.

    Raises UsageError naming `key` (the setting) where a glob matches none of them.
    """
    names = list(names)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError(f"{key}: {glob!r} matches no {what}; near are {', '.join(_near(glob, names)) or 'none'}")
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def _near(glob: str, names: Sequence[str]) -> list[str]:
    """A few names that the glob may have been meant for."""
    plain = glob.replace("*", "")
    scores = {name: difflib.SequenceMatcher(None, plain, name).ratio() for name in names}
    return sorted(names, key=lambda name: -scores[name])[:3]


def matching_linears(model: nn.Module, globs: Sequence[str], key: str) -> dict[str, Linear]:
    """Linear layers by name whose names match."""
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    return {name: linears[name] for name in matching(linears, globs, key, "linear layer")}
