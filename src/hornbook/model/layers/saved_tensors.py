"""What autograd keeps of a forward pass: tensors that are cheap to compute are made again in backward instead.

`cheap(function, *arguments)` calls the function. Inside `Rebuilding`, if autograd would keep the result, it keeps the
arguments in its place and calls the function again in backward: the same function of the same values, so no bit of a
gradient changes. This is selective recomputation (Korthikanti et al. 2022, arXiv 2205.05198, section 5) by value and
not by region: norms, activations and casts of weights are made again, and no matrix product is computed twice but that
of attention scores, whose probabilities are not kept.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]
"""`pack` and `unpack`, as of `torch.autograd.graph.saved_tensors_hooks`."""


class _Call(NamedTuple):
    """A call that makes a tensor; tensors among its arguments are packed."""

    function: Callable[..., Tensor]
    arguments: tuple[Any, ...]


class _Made:
    """The result of a call, as long as there is one."""

    def __init__(self, made: Tensor, function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> None:
        self.storage = StorageWeakRef(made.untyped_storage())
        """Its memory, whose identity no other tensor gets while this reference is there."""
        self.version = made._version
        self._function, self._arguments, self._call = function, arguments, None

    def call(self, pack: Callable[[Tensor], Any]) -> _Call:
        """What is kept in its place; arguments are packed once."""
        if self._call is None:
            arguments = (_packed(each, pack) if isinstance(each, Tensor) else each for each in self._arguments)
            self._call = _Call(self._function, tuple(arguments))
        return self._call


def _packed(argument: Tensor, pack: Callable[[Tensor], Any]) -> Any:
    """A parameter stays what it is: its data may be elsewhere until backward (`fully_shard`)."""
    return argument if isinstance(argument, torch.nn.Parameter) else pack(argument.detach())


class _View(NamedTuple):
    """A tensor in the memory of a call's result."""

    call: _Call
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Packed(NamedTuple):
    """A tensor as the hooks below ours packed it."""

    value: Any


class Rebuilding:
    """A context for one forward pass: results of `cheap` calls are not kept for backward."""

    active: "Rebuilding | None" = None
    """The one that a forward pass is in."""

    def __init__(self, rest: Hooks | None = None) -> None:
        """`rest` packs and unpacks what is kept; by default it stays as it is."""
        self._pack_rest, self._unpack_rest = rest or (lambda tensor: tensor, lambda packed: packed)
        self._made: dict[int, _Made] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        assert Rebuilding.active is None, "forward passes do not nest"
        self._stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack))
        Rebuilding.active = self
        return self

    def __exit__(self, *_: object) -> None:
        Rebuilding.active = None
        self._made.clear()  # memory that is free from here on may be that of other tensors
        self._stack.close()

    def add(self, made: Tensor, function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> None:
        """Remember how a tensor was made; what shares the memory of an argument is kept as usual."""
        storages = {each.untyped_storage()._cdata for each in arguments if isinstance(each, Tensor)}
        if made.untyped_storage()._cdata in storages:
            return
        # Arguments are held no longer than the result is there: what is gone by now, nobody will ask to keep.
        self._made = {key: each for key, each in self._made.items() if not each.storage.expired()}
        found = _Made(made, function, arguments)
        self._made[found.storage.cdata] = found

    def pack(self, tensor: Tensor) -> Any:
        """What is kept for a tensor."""
        made = self._made.get(tensor.untyped_storage()._cdata)
        if made is None or made.version != tensor._version:
            return _Packed(self._pack_rest(tensor))
        return _View(made.call(self.pack), tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, kept: Any) -> Tensor:
        """The tensor again, with the same bits."""
        if isinstance(kept, _Packed):
            return self._unpack_rest(kept.value)
        values = [self.unpack(each) if isinstance(each, _Packed | _View) else each for each in kept.call.arguments]
        with torch.no_grad():
            made = kept.call.function(*values)
        return made.as_strided(kept.shape, kept.stride, kept.offset)


def cheap(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """`function(*arguments)`, of a pure function that costs little beside a matrix product."""
    made = function(*arguments)
    if Rebuilding.active is not None and torch.is_grad_enabled():
        Rebuilding.active.add(made, function, arguments)
    return made


class _Unrecorded:
    """In place of autograd's context, where nothing is recorded."""

    def save_for_backward(self, *_: Any) -> None:
        """Keep nothing."""


def applied(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply(*arguments)`; without gradients its `forward` alone: autograd takes longer than a short row."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(_Unrecorded(), *arguments)


def is_rebuilding() -> bool:
    """Whether this forward pass keeps as little as it can."""
    return Rebuilding.active is not None
