"""Which parts of a model a glob means; a glob that means none is an error with the nearest names."""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from hornbook.errors import UsageError
from hornbook.model.layers.linear import Linear


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
