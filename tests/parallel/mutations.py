"""Collectives that are taken out, one at a time: whatever compares layouts must notice each (`Run.before`).

A site is a function of hornbook and the collective that it calls, itself or through torch. `record` writes down every
site of a run; `remove` makes the collective of one site do nothing: each rank keeps what it has.
"""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work

SHARED = ("World.all_reduce_sum", "World.all_gather", "exact_all_reduce_", "sum_of_own_part")
"""Functions that others reduce with: the site is who calls them."""
CONTROL = ("World.all_reduce_max", "World.barrier", "World.broadcast", "World.broadcast_text", "distributed", "join")
"""Stop, save and timeouts: no figures of a run."""


class Finished(Work):
    """A collective that is over."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """There is nothing to wait for."""
        del timeout
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """What goes on behind it."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


def _keep_own(tensor: Tensor, *_: Any, **__: Any) -> list[Tensor]:
    return [tensor]


def _keep_part(output: Tensor, own: Tensor, *_: Any, group: Any = None, **__: Any) -> list[Tensor]:
    output.copy_(own.reshape(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)].view_as(output))
    return [output]


def _keep_one(output: Tensor, own: Tensor, *_: Any, **__: Any) -> list[Tensor]:
    flat, mine = output.view(-1), own.reshape(-1)
    flat.copy_(mine.repeat(-(-len(flat) // max(len(mine), 1)))[: len(flat)])
    return [output]


def _keep_each(outputs: list[Tensor], own: Tensor, *_: Any, **__: Any) -> list[Tensor]:
    for output in outputs:
        output.copy_(own)
    return outputs


def _keep_lists(outputs: list[Tensor], own: list[Tensor], *_: Any, **__: Any) -> list[Tensor]:
    for output, mine in zip(outputs, own, strict=True):
        _keep_one(output, mine)
    return outputs


def _keep_of_list(output: Tensor, own: list[Tensor], *_: Any, group: Any = None, **__: Any) -> list[Tensor]:
    output.copy_(own[dist.get_rank(group)])
    return [output]


def _receive_nothing(operations: list[dist.P2POp], **_: Any) -> list[Work]:
    for each in operations:
        if each.op is dist.irecv:
            each.tensor.zero_()
    return []


WITHOUT: dict[str, Callable[..., list[Any]]] = {
    "all_reduce": _keep_own,
    "reduce": _keep_own,
    "broadcast": _keep_own,
    "reduce_scatter": _keep_of_list,
    "reduce_scatter_single": _keep_part,
    "all_gather": _keep_each,
    "all_gather_single": _keep_one,
    "all_to_all_single": _keep_one,
    "all_to_all": _keep_lists,
    "batch_isend_irecv": _receive_nothing,
}
"""Collective -> what takes its place."""


def site(name: str) -> str | None:
    """`COLLECTIVE by FUNCTION+LINE` of the call under way, with up to two callers of that and, in a forward pass, the
    function of the model; None where it does not count.
    """
    frame, callers, near = sys._getframe(2), list[str](), True
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        is_ours = module.startswith("hornbook.")
        if is_ours and function in CONTROL:
            return None
        if is_ours and function not in SHARED:
            line = frame.f_lineno - frame.f_code.co_firstlineno
            if module.startswith("hornbook.model."):
                callers.append(f"in {function}")
                break
            if near and len(callers) < 3:
                callers.append(f"by {function}+{line}")
        near = near and (is_ours or not callers)
        frame = frame.f_back
    return " ".join([name, *callers]) if callers else None


def _watch(name: str, seen: Callable[[str], bool]) -> None:
    real, without = getattr(dist, name), WITHOUT[name]
    signature = inspect.signature(real)

    def call(*args: Any, **settings: Any) -> Any:
        where = site(name)
        if where is None or not seen(where):
            return real(*args, **settings)
        given = signature.bind(*args, **settings).arguments
        found = without(*list(given.values())[:2], group=given.get("group"))
        if name == "batch_isend_irecv":
            return found
        return Finished(found) if given.get("async_op") else None

    setattr(dist, name, call)


def record(folder: str) -> None:
    """Write every site of this rank to a file of the folder."""
    found, path = set[str](), Path(folder) / str(os.getpid())

    def seen(where: str) -> bool:
        if where not in found:
            found.add(where)
            with path.open("a") as file:
                file.write(where + "\n")
        return False

    for name in WITHOUT:
        _watch(name, seen)


def remove(where: str) -> None:
    """Take out the collective of one site."""
    for name in WITHOUT:
        _watch(name, where.__eq__)
