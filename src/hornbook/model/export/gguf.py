"""GGUF files (version 3): metadata, a table of tensors, and their bytes; written front to back.

Format: github.com/ggml-org/ggml, docs/gguf.md. Little endian. Strings are a length (uint64) and UTF-8; a value is a
type code (uint32) and the value; an array is the type of its items, their number and the items. Dims stand in reverse:
the contiguous one first.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

Dtype = Literal["fp32", "fp16", "bf16", "q8_0"]
MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
BLOCK = 32
"""Values of a row that share a scale in q8_0."""
CODES: dict[Dtype, int] = {"fp32": 0, "fp16": 1, "q8_0": 8, "bf16": 30}
"""Of types of tensors."""
FILE_TYPES: dict[Dtype, int] = {"fp32": 0, "fp16": 1, "q8_0": 7, "bf16": 32}
"""Values of the key `general.file_type`."""
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9

Value = str | bool | int | float | Sequence[str] | Sequence[int]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor before it is written."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def num_bytes(self) -> int:
        """Of its values."""
        count = prod(self.shape)
        return count // BLOCK * (2 + BLOCK) if self.dtype == "q8_0" else count * (4 if self.dtype == "fp32" else 2)


def write_gguf(
    file: BinaryIO, metadata: Mapping[str, Value], infos: Sequence[TensorInfo], tensors: Iterable[Tensor]
) -> None:
    """Write a file; `tensors` come in the order of `infos`, one at a time. Raises OSError."""
    file.write(MAGIC + struct.pack("<IQQ", VERSION, len(infos), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + _value(value))
    offset = 0
    for info in infos:
        dims = struct.pack(f"<I{len(info.shape)}Q", len(info.shape), *reversed(info.shape))
        file.write(_string(info.name) + dims + struct.pack("<IQ", CODES[info.dtype], offset))
        offset += _aligned(info.num_bytes)
    file.write(b"\0" * (_aligned(file.tell()) - file.tell()))
    for info, tensor in zip(infos, tensors, strict=True):
        assert tuple(tensor.shape) == info.shape, info.name
        data = encode(tensor, info.dtype)
        assert len(data) == info.num_bytes
        file.write(data + b"\0" * (_aligned(len(data)) - len(data)))


def encode(tensor: Tensor, dtype: Dtype) -> bytes:
    """The bytes of a tensor's values, rounded to nearest."""
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    if dtype == "q8_0":
        scales, codes = quantize(values)
        blocks = np.empty(len(scales), np.dtype([("scale", "<f2"), ("codes", "i1", BLOCK)]))
        blocks["scale"], blocks["codes"] = scales.half().numpy(), codes.numpy()
        return blocks.tobytes()
    narrow = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    return values.to(narrow).view(torch.int32 if dtype == "fp32" else torch.int16).numpy().tobytes()


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """(scales [blocks], codes int8 [blocks, 32]) of q8_0: the largest value of a block is 127 times its scale."""
    blocks = values.reshape(-1, BLOCK)
    scales = blocks.abs().amax(1) / 127
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    scaled = blocks * inverse[:, None]
    return scales, (scaled.abs() + 0.5).floor().copysign(scaled).to(torch.int8)


def rounded(tensor: Tensor, dtype: Dtype) -> Tensor:
    """The values (float32) that a reader finds."""
    values = tensor.detach().to("cpu", torch.float32)
    if dtype == "q8_0":
        scales, codes = quantize(values.contiguous())
        return (scales.half().float()[:, None] * codes.float()).view(values.shape)
    return values.to({"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]).float()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = bool(value) and isinstance(value[0], str)
        items = [_string(each) if isinstance(each, str) else struct.pack("<i", each) for each in value]
        return struct.pack("<IIQ", _ARRAY, _STRING if texts else _INT32, len(value)) + b"".join(items)
    code, data = _scalar(value)
    return struct.pack("<I", code) + data


def _scalar(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return _UINT32, struct.pack("<I", value)
    return (_STRING, _string(value)) if isinstance(value, str) else (_FLOAT32, struct.pack("<f", value))
