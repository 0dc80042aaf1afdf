"""A CUDA device without a GPU, for tests in this process: `with emulated_cuda() as waits: ...`.

Python's side of torch believes in one H100; `tests.helpers.emulated_tensor` says what its tensors do, and what `waits`
notes. Kernels that only a GPU has (flash attention over documents, FlexAttention) are stand-ins. There is no compiled
code, no CUDA graph and no figure of memory. All changes of torch are undone at the end.
"""

import contextlib
import functools
import importlib
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput
from torch.nn.attention.varlen import varlen_attn
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.model.attention import device_attention
from tests.helpers.emulated_tensor import (
    CPU,
    CUDA,
    CudaTensor,
    ToDevice,
    ToHost,
    Waits,
    destination,
    dispatch,
    note_copy,
)
from tests.model.attention.test_device_attention import document_by_document

NAME = "NVIDIA H100 80GB HBM3"
FREE, TOTAL = 80 * 10**9, 85 * 10**9
EARLY = ("distributed.fsdp", "nn.attention.varlen", "optim", "_dynamo", "utils.checkpoint")
"""Modules of torch that would otherwise be loaded while `torch.cuda` is another."""
for _name in EARLY:
    importlib.import_module(f"torch.{_name}")


@contextlib.contextmanager
def emulated_cuda() -> Iterator[Waits]:
    """One emulated GPU, `cuda:0`, in all threads that begin within; gives the waits of the host for it."""
    assert not torch.cuda.is_available(), "there is a GPU: `make gpu` runs the real thing"
    waits = Waits()
    _clear_caches()
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch, _Mode(waits):
        patch.setattr(CudaTensor, "waits", waits, raising=False)
        _patch_device(patch, waits)
        _patch_tensors(patch, waits)
        _patch_kernels(patch, waits)
        _patch_threads(patch, waits)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            yield waits
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
            _clear_caches()


class _Mode(TorchDispatchMode):
    """Makes tensors of the device where an operation is asked to."""

    supports_higher_order_operators = True

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {}, self._waits)


def _clear_caches() -> None:
    """Drop what hornbook remembers of a device by its name."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("hornbook.model", "hornbook.parallel", "hornbook.run")):
            for each in vars(module).values():
                if hasattr(each, "cache_clear"):
                    each.cache_clear()


def _patch_device(patch: pytest.MonkeyPatch, waits: Waits) -> None:
    """`torch.cuda`: one device that is there and ready."""
    properties = types.SimpleNamespace(
        total_memory=TOTAL, name=NAME, major=9, minor=0, multi_processor_count=132, L2_cache_size=50 << 20, uuid="0"
    )
    answers = {"is_available": True, "is_initialized": True, "is_bf16_supported": True, "device_count": 1}
    answers |= {"current_device": 0, "is_current_stream_capturing": False, "get_device_name": NAME}
    answers |= {"get_device_capability": (9, 0), "get_device_properties": properties, "mem_get_info": (FREE, TOTAL)}
    answers |= dict.fromkeys(("memory_allocated", "max_memory_allocated"), 10**9)
    answers |= dict.fromkeys(("memory_reserved", "max_memory_reserved"), 10**9)
    answers |= dict.fromkeys(("set_device", "_lazy_init", "reset_peak_memory_stats", "empty_cache"))
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    stream = _Stream()
    patch.setattr(torch.cuda, "synchronize", lambda *_: waits.note("synchronize"))
    patch.setattr(torch.cuda, "Event", _Event)
    patch.setattr(torch.cuda, "Stream", _Stream)
    patch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    patch.setattr(torch.cuda, "default_stream", lambda *_: stream)
    patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    patch.setattr(torch.cuda.memory, "_record_memory_history", lambda *_, **__: None)
    patch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: open(path, "wb").close())


class _Event:
    """A moment in the order of launches."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._launches, self._time = 0, 0.0

    def record(self, *_: Any) -> None:
        self._launches, self._time = CudaTensor.waits.launches, time.perf_counter()

    def synchronize(self) -> None:
        CudaTensor.waits.note("synchronize", self._launches)

    def wait(self, *_: Any) -> None:
        """A stream waits, not the host."""

    def query(self) -> bool:
        return self._launches <= CudaTensor.waits.ended

    def elapsed_time(self, end: "_Event") -> float:
        return (end._time - self._time) * 1e3


class _Stream:
    """All streams are one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device, self.cuda_stream = CUDA, 0

    def wait_stream(self, _: Any) -> None:
        pass

    def wait_event(self, _: Any) -> None:
        pass

    def synchronize(self) -> None:
        CudaTensor.waits.note("synchronize")

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event


def _patch_tensors(patch: pytest.MonkeyPatch, waits: Waits) -> None:
    """What makes tensors, or asks where they are, below the level of operations."""
    tensor, empty, to, group = torch.tensor, torch.empty, Tensor.to, torch._C._group_tensors_by_device_and_dtype

    def made(data: Any, *, device: Any = None, pin_memory: bool = False, **options: Any) -> Tensor:
        if device is None or torch.device(device).type != "cuda":
            found = tensor(data, device=device, **options)
            return waits.pin(found) if pin_memory else found
        found = tensor(data, device=CPU, **options)
        waits.launch()
        waits.note("numbers to device")
        return CudaTensor(found.detach()).requires_grad_(found.requires_grad)

    def moved(x: Tensor, *args: Any, **options: Any) -> Tensor:
        device, dtype, non_blocking = destination(args, options)
        if isinstance(x, CudaTensor) or device is None or device.type != "cuda":
            return to(x, *args, **options)
        if x.requires_grad and torch.is_grad_enabled():
            waits.launch()
            note_copy(x, dtype or x.dtype, non_blocking, waits)
            return ToDevice.apply(to(x, dtype or x.dtype))
        return to(x, CUDA, dtype or x.dtype, non_blocking=non_blocking)

    def pinned(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return waits.pin(empty(*size, **options)) if pin_memory else empty(*size, **options)

    def grouped(*arguments: Any) -> Any:
        return {
            (CUDA if any(isinstance(each, CudaTensor) for each in lists[0]) else device, dtype): (lists, indices)
            for (device, dtype), (lists, indices) in group(*arguments).items()
        }

    patch.setattr(torch, "tensor", made)
    patch.setattr(torch, "empty", pinned)
    patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", grouped)
    patch.setattr(Tensor, "to", moved)
    patch.setattr(Tensor, "is_pinned", lambda x, *_: waits.is_pinned(x))
    patch.setattr(Tensor, "pin_memory", lambda x, *_: x if waits.is_pinned(x) else waits.pin(_with_gaps(x)))
    for name in ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"):
        patch.setattr(torch, name, _like(getattr(torch, name), waits))


def _with_gaps(x: Tensor) -> Tensor:
    """A copy with the same strides, as page-locked memory gets."""
    size = 1 + sum((count - 1) * stride for count, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.new_empty(size).as_strided(x.shape, x.stride()).copy_(x)


def _like(make: Callable[..., Tensor], waits: Waits) -> Callable[..., Tensor]:
    def made(x: Tensor, *args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        to_host = options.get("device") is not None and torch.device(options["device"]).type == "cpu"
        found = make(x.values if isinstance(x, CudaTensor) and to_host else x, *args, **options)
        return waits.pin(found) if pin_memory else found

    return made


def _patch_kernels(patch: pytest.MonkeyPatch, waits: Waits) -> None:
    """Attention as a GPU's own kernels compute it: in float32, with a result in the dtype of the queries.

    And functions of torch that make a tensor where C++ sees the values.
    """

    def on_host(x: Any) -> Any:
        return x if not isinstance(x, CudaTensor) else ToHost.apply(x).float() if x.is_floating_point() else x.values

    @functools.wraps(varlen_attn)
    def varlen(query: Tensor, *args: Any, **options: Any) -> Tensor:
        waits.launch()
        found = document_by_document(*map(on_host, (query, *args)), **options)
        return ToDevice.apply(found.to(query.dtype))

    def whole(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *args: Any, **options: Any) -> Tensor:
        given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        if not any(isinstance(each, CudaTensor) for each in given):
            return attention(query, key, value, attn_mask, *args, **options)
        assert all(isinstance(each, CudaTensor) for each in given), "attention mixes devices"
        waits.launch()
        found = attention(*map(on_host, (query, key, value, attn_mask)), *args, **options)
        return ToDevice.apply(found.to(query.dtype))

    def padded(sequences: list[Tensor], batch_first: bool = False, padding_value: float = 0.0) -> Tensor:
        if not isinstance(sequences[0], CudaTensor):
            return pad(sequences, batch_first, padding_value)
        longest, around = max(map(len, sequences)), (0, 0) * (sequences[0].dim() - 1)
        rows = [F.pad(each, (*around, 0, longest - len(each)), value=padding_value) for each in sequences]
        return torch.stack(rows, 0 if batch_first else 1)

    attention, pad = F.scaled_dot_product_attention, torch.nn.utils.rnn.pad_sequence
    patch.setattr(torch.nn.utils.rnn, "pad_sequence", padded)
    patch.setattr(F, "scaled_dot_product_attention", whole)
    patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    patch.setattr(device_attention, "_flex_attention", lambda _: _flex)
    patch.setattr(device_attention, "_compiles", lambda: True)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, *, score_mod: Any, block_mask: Any, scale: float, **options: Any
) -> Any:
    """FlexAttention with all scores at once, which functions of places change as one tensor."""
    sizes = (len(query), query.shape[1], query.shape[2], key.shape[2])
    places = torch.meshgrid(*(torch.arange(size, device=CUDA) for size in sizes), indexing="ij")
    groups = query.shape[1] // key.shape[1]
    assert options["enable_gqa"] == (groups > 1)
    key, value = (each.float().repeat_interleave(groups, 1) for each in (key, value))
    scores = query.float() @ key.transpose(-1, -2) * scale
    scores = scores if score_mod is None else score_mod(scores, *places)
    scores = scores.masked_fill(~block_mask.mask_mod(*places), -torch.inf)
    out = (scores.softmax(-1).nan_to_num() @ value).to(query.dtype)
    return (out, AuxOutput(lse=scores.logsumexp(-1))) if "return_aux" in options else out


def _patch_threads(patch: pytest.MonkeyPatch, waits: Waits) -> None:
    run = threading.Thread.run

    def run_with_device(thread: threading.Thread) -> None:
        with _Mode(waits):
            run(thread)

    patch.setattr(threading.Thread, "run", run_with_device)
