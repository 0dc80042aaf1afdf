"""The number of ranks of a run: the axis that a recipe leaves at -1, and whether the axes of [parallel] fit a world."""

from collections.abc import Iterator
from math import prod
from typing import Any

from hornbook.errors import UsageError
from hornbook.parallel.config import FILL, ParallelConfig, axis_ranks
from hornbook.settings.resolve import Resolved, override
from hornbook.settings.sources import Given, Source
from hornbook.settings.toml import set_at

INNERMOST = ("parallel.expert", "parallel.tensor", "parallel.context.ranks", "parallel.data")
"""Axes from the one whose ranks have neighbouring numbers outwards (`hornbook.parallel.world.AXES`)."""


def fill_world(resolved: Resolved, ranks: int, origin: str, *, data: bool = False) -> Resolved:
    """The recipe with a number of ranks in place of -1, so that the axes make `ranks` in all.

    origin: who says that there are so many, for messages. data: fill `parallel.data` where nothing sets it, too.
    Raises UsageError where the other axes do not divide the ranks, and all that a wrong setting raises.
    """
    axes = axis_ranks(resolved.recipe.parallel)
    key = next((key for key, size in axes.items() if size == FILL), None)
    if key is None and data and resolved.origins.get("parallel.data", "default") == "default":
        key = "parallel.data"
    if key is None:
        return resolved
    others = {name: size for name, size in axes.items() if name != key}
    if ranks % prod(others.values()):
        remedy = " or ".join(_divisors(others, ranks)) or f"take a multiple of {prod(others.values())} ranks"
        raise UsageError(f"{ranks} ranks, {origin}, and {_product(others)}, which leaves no {key}: {remedy}")
    value = ranks // prod(others.values())
    tree = dict[str, Any]()
    set_at(tree, key.split("."), Given(value, f"-1: {ranks} ranks, {origin}"))
    return override(resolved, [Source(tree)])


def smallest_world(resolved: Resolved) -> Resolved:
    """The recipe with one rank in place of -1, for what is said of it without a launcher."""
    return fill_world(resolved, resolved.recipe.parallel.world, "the fewest that the other axes allow")


def check_world(parallel: ParallelConfig, ranks: int, started: str, remedy: str = "") -> None:
    """Raise UsageError unless the axes make so many ranks; it names the axis to change, and to what.

    started: who started them, such as `torchrun started 4 ranks`. remedy: how as many as the axes need are started.
    """
    axes = axis_ranks(parallel)
    if prod(axes.values()) == ranks:
        return
    size = prod(axes.values())
    other = f", or start {size} {remedy}" if remedy else ""
    changes = " or ".join(_changes(axes, ranks)) or f"none of them alone can make it {ranks}"
    raise UsageError(f"{started}, and {_product(axes, always='parallel.data')}: {changes}{other}")


def _product(axes: dict[str, int], always: str = "") -> str:
    """`parallel.data is 2`, `parallel.data 2 x parallel.tensor 3 is 6`."""
    wide = {key: size for key, size in axes.items() if size > 1} or {always or next(iter(axes)): 1}
    if len(wide) == 1:
        return "".join(f"{key} is {size}" for key, size in wide.items())
    return f"{' x '.join(f'{key} {size}' for key, size in wide.items())} is {prod(wide.values())}"


def _changes(axes: dict[str, int], ranks: int) -> Iterator[str]:
    """For each axis that alone can be changed so that the product is `ranks`, the words to give; data first."""
    for key, size in axes.items():
        rest = prod(axes.values()) // size
        if (size > 1 or key == "parallel.data") and ranks % rest == 0:
            yield f"give --{key} {ranks // rest}"


def _divisors(axes: dict[str, int], ranks: int) -> Iterator[str]:
    """For each axis that alone can be made smaller so that the product divides `ranks`, the words to give."""
    for key, size in axes.items():
        rest = prod(axes.values()) // size
        fitting = [smaller for smaller in range(1, size) if ranks % (rest * smaller) == 0]
        if fitting:
            yield f"give --{key} {fitting[-1]}"


def warning_about_nodes(parallel: ParallelConfig, per_node: int | None) -> str:
    """A warning where ranks that exchange activations in every layer are on several machines; "" where not.

    per_node: ranks of each machine, which have neighbouring numbers; None where it is not known.
    """
    axes, block = axis_ranks(parallel), dict[str, int]()
    if per_node is None or per_node >= parallel.world:
        return ""
    for key in INNERMOST[:-1]:  # data-parallel ranks, and stages, exchange little
        if axes[key] > 1:
            block = {key: axes[key], **block}
            if per_node % prod(block.values()):
                named = " x ".join(f"{name} {size}" for name, size in block.items())
                return (
                    f"machines have {per_node} ranks each, so ranks along {key} are on several, and exchange "
                    f"activations in every layer: make {named} a divisor of {per_node}"
                )
    return ""
