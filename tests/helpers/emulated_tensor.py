"""Tensors of a CUDA device without a GPU: they say `cuda:0`, keep their values on the CPU and refuse to mix devices.

Waits of the host for the device are noted with their kind and place. Numbers are launches, counted from 1:

| call | waits for | noted as |
|---|---|---|
| `item`, `tolist`, a copy that is not asynchronous, `nonzero`, an index of booleans | all launches | draining |
| an asynchronous copy from memory that is not pinned, to another dtype, or with gaps | all launches | draining |
| `Event.synchronize` | launches before `record` | draining if nothing was launched since `record` |

After a draining wait the device is idle until the host has launched again. A wait for what has ended is no wait.
The C++ side of torch sees CPU tensors, and its kernels are those of a CPU.
"""

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

import hornbook

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
aten: Any = torch.ops.aten
SOURCE = next(iter(hornbook.__path__))
ACROSS = {
    "_to_copy",
    "copy_",
    "_foreach_copy_",
    "index",
    "_unsafe_index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
}
"""Operations that a GPU lets mix devices."""
WAITING = {
    "_local_scalar_dense": "item",
    "allclose": "item",
    "equal": "equal",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "bincount": "bincount",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "_linalg_eigh": "eigh",
    "_linalg_svd": "svd",
}
"""Operations that ask the device for values, as CUDA's warn-on-synchronization lists them."""


@dataclass(frozen=True)
class Wait:
    """The host waited for the device."""

    kind: str
    place: str
    """file:line of the innermost frame of hornbook, or "" where there is none."""
    thread: str
    """Name of the thread that waited."""
    drains: bool
    """Nothing is queued any more: the device is idle until the host goes on."""


class Waits:
    """Waits since `clear`, and the launches that they are judged by."""

    def __init__(self) -> None:
        self.launches = self.ended = 0
        self.found: list[Wait] = []
        self.pinned: dict[int, Any] = {}
        """Storages of page-locked host memory by address: kept, so that no other tensor gets the address."""
        self._paused = False

    def launch(self) -> None:
        """Count a kernel or a copy."""
        self.launches += 1

    def note(self, kind: str, until: int | None = None) -> None:
        """The host waits for launch number `until`, or for all."""
        until = self.launches if until is None else until
        if self._paused or (until <= self.ended and kind == "synchronize"):
            return
        self.ended = max(self.ended, until)
        self.found.append(Wait(kind, _place(), threading.current_thread().name, until == self.launches))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing: inside of a stand-in for a kernel."""
        before, self._paused = self._paused, True
        yield
        self._paused = before

    def clear(self) -> None:
        """Forget the waits so far."""
        self.found.clear()

    def places(self, *, draining: bool = True, thread: str = "MainThread") -> Counter[str]:
        """Number of waits of a thread by "kind @ place"; `draining`: only those that leave the device idle."""
        mine = (each for each in self.found if each.thread == thread and (each.drains or not draining))
        return Counter(f"{each.kind} @ {each.place}" for each in mine)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor on the host is page-locked."""
        return tensor.untyped_storage().data_ptr() in self.pinned

    def pin(self, tensor: Tensor) -> Tensor:
        """Call the memory of a tensor page-locked."""
        self.pinned[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor


def _place() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(SOURCE):
            return f"{name.removeprefix(SOURCE).lstrip('/')}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class CudaTensor(Tensor):
    """A tensor of the emulated device; `values` is a plain one."""

    values: Tensor
    waits: Waits
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> "CudaTensor":
        assert not isinstance(values, CudaTensor)
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "layout": values.layout}
        made = Tensor._make_wrapper_subclass(cls, values.size(), dtype=values.dtype, device=CPU, **layout)
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {}, cls.waits)

    device = property(lambda _: CUDA)
    is_cuda = property(lambda _: True)
    is_cpu = property(lambda _: False)

    def __repr__(self, **_: Any) -> str:
        return f"cuda:0 {self.values!r}"

    def get_device(self) -> int:
        return 0

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self.to(CPU)

    def to(self, *args: Any, **options: Any) -> Tensor:
        device, dtype, non_blocking = destination(args, options)
        if device is None or device.type == "cuda":
            copies = options.get("copy", False)
            return self if dtype in (None, self.dtype) and not copies else _TO(self, dtype or self.dtype, copy=copies)
        made = ToHost.apply(self if dtype is None else _TO(self, dtype))
        self.waits.launch()
        if non_blocking:
            return self.waits.pin(made)
        self.waits.note("to host")
        return made

    def tolist(self) -> Any:
        self.waits.note("tolist")
        return self.values.tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": CUDA, **options})

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")

    __array__ = numpy

    def pin_memory(self, *_: Any) -> Tensor:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")

    def is_pinned(self, *_: Any) -> bool:
        return False

    def record_stream(self, *_: Any) -> None:
        pass

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.values.untyped_storage()


_TO = Tensor.to


class ToHost(torch.autograd.Function):
    """The values on the host; gradients go back to the device."""

    @staticmethod
    def forward(_: Any, x: CudaTensor) -> Tensor:
        return x.values.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return CudaTensor(grad.clone())


class ToDevice(torch.autograd.Function):
    """The values on the device; gradients go back to the host."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return CudaTensor(x.clone())

    @staticmethod
    def backward(_: Any, grad: CudaTensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad.values.clone()


def destination(args: Any, options: Any) -> tuple[torch.device | None, torch.dtype | None, bool]:
    """(device, dtype, non_blocking) that arguments of `Tensor.to` ask for."""
    device, dtype = options.get("device"), options.get("dtype")
    flags = [each for each in args if isinstance(each, bool)]
    for each in (*args, options.get("other")):
        if isinstance(each, Tensor):
            device, dtype = each.device, each.dtype
        elif isinstance(each, str | torch.device | int) and not isinstance(each, bool):
            device = torch.device("cuda", each) if isinstance(each, int) else each
        elif isinstance(each, torch.dtype):
            dtype = each
    return (
        None if device is None else torch.device(device),
        dtype,
        options.get("non_blocking", bool(flags[:1] == [True])),
    )


def _values(x: Any) -> Any:
    return x.values if isinstance(x, CudaTensor) else x


def _on_device(x: Any) -> Any:
    return CudaTensor(x) if isinstance(x, Tensor) and not isinstance(x, CudaTensor) else x


def dispatch(func: Any, args: Any, options: dict[str, Any], waits: Waits) -> Any:
    """Run an operation on the values, as a GPU would take or refuse it."""
    name, device = func._schema.name.removeprefix("aten::"), options.get("device")
    tensors = [each for each in tree_leaves((args, options)) if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, CudaTensor)]
    to_device = device is not None and torch.device(device).type == "cuda"
    if not there and not to_device:
        return func(*args, **options)
    waits.launches += not (func.is_view or name.startswith("empty"))
    if name == "copy_":
        return _copy(
            *args[:2], non_blocking=args[2] if len(args) > 2 else options.get("non_blocking", False), waits=waits
        )
    if name == "_to_copy" and not there:
        source = args[0]
        note_copy(source, options.get("dtype") or source.dtype, options.get("non_blocking", False), waits)
    _refuse_mixed(name, args, tensors)
    _note_waits(name, args, options, there, waits)
    options = {key: value for key, value in options.items() if key != "pin_memory"}
    if device is not None:
        options["device"] = CPU
    inner = tree_map(_values, (args, options))
    if not there:  # made on the device, of tensors without values perhaps
        inner = tree_map(lambda x: torch.empty_like(x, device=CPU) if isinstance(x, Tensor) and x.is_meta else x, inner)
    found = tree_map(_on_device, func(*inner[0], **inner[1]))
    if not there or name.startswith("_foreach") or not func._schema.returns:
        return found
    return return_and_correct_aliasing(func, args, options, found)


def _copy(target: Tensor, source: Tensor, *, non_blocking: bool, waits: Waits) -> Tensor:
    up, down = isinstance(target, CudaTensor), isinstance(source, CudaTensor)
    if up and not down:
        note_copy(source, target.dtype, non_blocking, waits)
    if down and not up and not (non_blocking and waits.is_pinned(target)):
        waits.note("copy to host")
    _values(target).copy_(_values(source))
    return target


def note_copy(source: Tensor, dtype: torch.dtype, non_blocking: bool, waits: Waits) -> None:
    """A copy up. One that changes the dtype or has gaps goes through memory that is not pinned."""
    dense = aten.is_non_overlapping_and_dense(source)
    if source.is_meta or source.numel() == 0:
        return
    if not non_blocking:
        waits.note("copy to device")
    elif not waits.is_pinned(source) or source.dtype != dtype or not dense:
        waits.note("copy of pageable memory to device")


def _refuse_mixed(name: str, args: Any, tensors: list[Tensor]) -> None:
    here = [each for each in tensors if not isinstance(each, CudaTensor) and each.dim() > 0 and not each.is_meta]
    if name == "_to_copy" or not here or len(here) == len(tensors) or _are_zeros_of_backward(here):
        return
    indexes = name in ACROSS and "index" in name
    if (
        name not in ACROSS
        or (indexes and not isinstance(args[0], CudaTensor))
        or (indexes and len(args) > 2 and isinstance(args[2], Tensor) and any(each is args[2] for each in here))
    ):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu! (in {name})")


def _are_zeros_of_backward(here: list[Tensor]) -> bool:
    """Gradients of parts that nothing used, which torch makes where it sees the values: on the CPU."""
    node = torch._C._current_autograd_node()
    in_torch = node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction)
    return in_torch and not any(bool(each.any()) for each in here)


def _note_waits(name: str, args: Any, options: dict[str, Any], there: list[Tensor], waits: Waits) -> None:
    if not there:
        return
    if name in WAITING:
        waits.note(WAITING[name])
    elif name == "repeat_interleave" and options.get("output_size") is None:
        waits.note("repeat_interleave")
    elif name in ACROSS and "index" in name:
        indices = [each for each in args[1] if isinstance(each, Tensor)]
        fills = len(args) > 2 and args[2].numel() == 1 and not isinstance(args[2], CudaTensor)
        if any(not isinstance(each, CudaTensor) for each in indices):
            waits.note("index on the host")
        if any(each.dtype in (torch.bool, torch.uint8) for each in indices) and not fills:
            waits.note("index of booleans")
