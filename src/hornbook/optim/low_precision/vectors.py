"""8-bit codes on a CPU with AVX-512 and VBMI, its permutations of bytes: tables in registers, where loops gather.

`narrow_kernels.py` takes these for whole vectors where the CPU has them, and its own arithmetic for the rest and
everywhere else, with the same bits. A gather from a table of 256 values takes a cycle or more for each of them; 64
bytes are looked up in two instructions, so the four bytes of 64 values in eight.
"""

from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba import njit
from numba.core import cgutils, config, types
from numba.extending import intrinsic
from torch import Tensor

from hornbook.optim.low_precision.codes import DECADES, NINTH, Grid, dynamic_map, grid

FLOATS, CODES = 16, 64
"""Values that encoding and decoding take at once."""
_FLOAT, _INT, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(8)
_FLOATS, _INTS, _BYTES = ir.VectorType(_FLOAT, FLOATS), ir.VectorType(_INT, FLOATS), ir.VectorType(_BYTE, CODES)
_LOWEST = 96
"""Exponent (as stored) below which a magnitude is in the first decade; tables have an entry for each from there on."""


def _has_permutations() -> bool:
    """By what numba compiles for, which its variables may lower."""
    numba: Any = config
    if numba.CPU_FEATURES is not None:
        return "+avx512vbmi" in str(numba.CPU_FEATURES).split(",")
    host = numba.CPU_NAME in (None, "host") and bool(numba.ENABLE_AVX)
    return host and llvmlite.binding.get_host_cpu_features().get("avx512vbmi", False)


HAS_PERMUTATIONS = _has_permutations()


def byte_planes(signed: bool) -> Tensor:
    """uint8 [4, 256]: the first, second ... byte of the value of each code."""
    return dynamic_map(signed).view(torch.uint8).view(256, 4).T.contiguous()


def _call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(result, [each.type for each in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx512.{name}"), arguments)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, offset: Any, vector: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _constant(vector: Any, values: Any) -> Any:
    return ir.Constant(vector, [ir.Constant(vector.element, value) for value in values])


def _same(vector: Any, value: Any) -> Any:
    return _constant(vector, [value] * vector.count)


def _decode(_context: Any, codes: Any, tables: Any, values: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def at(number: int, offset: Any, vector: Any) -> Any:
            return _pointer(context, builder, signature.args[number], arguments[number], offset, vector)

        offsets = [ir.Constant(ir.IntType(64), 64 * number) for number in range(16)]
        table = [builder.load(at(1, offset, _BYTES), align=1) for offset in offsets]
        with cgutils.for_range(builder, arguments[3]) as loop:
            start = builder.mul(loop.index, ir.Constant(loop.index.type, CODES))
            index = builder.load(at(0, start, _BYTES), align=1)
            upper = builder.icmp_signed("<", index, _same(_BYTES, 0))
            found = []
            for plane in range(4):
                quarters = table[4 * plane : 4 * plane + 4]
                halves = [
                    _call(builder, "vpermi2var.qi.512", _BYTES, [low, index, high])
                    for low, high in (quarters[:2], quarters[2:])
                ]
                found.append(builder.select(upper, halves[1], halves[0]))
            for number, bytes_ in enumerate(_interleaved(builder, found)):
                place = builder.add(start, ir.Constant(start.type, FLOATS * number))
                builder.store(builder.bitcast(bytes_, _FLOATS), at(2, place, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(codes, tables, values, count), generate


def _interleaved(builder: Any, parts: list[Any]) -> list[Any]:
    """Four vectors: the first bytes of all four parts, the second bytes ... in turn."""

    def mixed(a: Any, b: Any, width: int) -> list[Any]:
        """Both in turn, `width` bytes at a time: the first half of each, then the second."""
        wide = ir.VectorType(ir.IntType(8 * width), CODES // width)
        a, b, half = builder.bitcast(a, wide), builder.bitcast(b, wide), wide.count // 2
        masks = [[half * k + j // 2 + j % 2 * wide.count for j in range(wide.count)] for k in range(2)]
        index = ir.VectorType(_INT, wide.count)
        return [builder.shuffle_vector(a, b, _constant(index, mask)) for mask in masks]

    low, high = mixed(parts[0], parts[1], 1), mixed(parts[2], parts[3], 1)
    return [each for a, b in zip(low, high, strict=True) for each in mixed(a, b, 2)]


def _numbers(signed: bool) -> Any:
    """A function that writes the instructions of `codes.encode` but for the sign: magnitudes -> numbers.

    A binade begins in a decade that its exponent says, and at most one other begins in it.
    """
    by = grid(signed)
    starts = [2.0 ** (exponent - 127) for exponent in range(_LOWEST, _LOWEST + 32)]
    limits = [next((float(x) for x in by.limits if start <= x < 2 * start), float("inf")) for start in starts]
    decades = [sum(bool(start > x) for x in by.limits) for start in starts]
    scales = [float(by.scales[min(decade, DECADES - 1)]) for decade in range(FLOATS)]

    def write(builder: Any, size: Any) -> Any:
        bits = builder.bitcast(size, _INTS)
        index = builder.lshr(_greatest(builder, bits, _same(_INTS, _LOWEST << 23)), _same(_INTS, 23))
        limit = _call(builder, "vpermi2var.ps.512", _FLOATS, _among(_FLOATS, limits, index))
        above = builder.zext(builder.fcmp_ordered(">=", size, limit), _INTS)
        decade = builder.add(_call(builder, "vpermi2var.d.512", _INTS, _among(_INTS, decades, index)), above)
        scale = _call(builder, "permvar.sf.512", _FLOATS, [_constant(_FLOATS, scales), decade])
        count = builder.shl(builder.add(decade, _same(_INTS, 126 + by.first)), _same(_INTS, 23))
        return _number(builder, by, size, scale, builder.bitcast(count, _FLOATS))

    return write


def _number(builder: Any, by: Grid, size: Any, scale: Any, count: Any) -> Any:
    zero, most = _same(_FLOATS, 0.0), builder.fsub(count, _same(_FLOATS, 1.0))
    inside = builder.fsub(builder.fmul(size, scale), builder.fmul(count, _same(_FLOATS, float(NINTH))))
    inside = builder.select(builder.fcmp_ordered(">", inside, zero), inside, zero)
    inside = builder.select(builder.fcmp_ordered("<", inside, most), inside, most)
    number = builder.fadd(inside, builder.fsub(count, _same(_FLOATS, by.first - 1.0)))
    one = builder.fcmp_ordered(">=", size, _same(_FLOATS, float(by.one)))
    number = builder.select(one, _same(_FLOATS, float(by.last)), number)
    counted = builder.fcmp_ordered(">=", size, _same(_FLOATS, float(by.zero)))
    return builder.fptosi(builder.select(counted, number, zero), _INTS)


def _greatest(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _among(vector: Any, values: list[Any], index: Any) -> list[Any]:
    """Arguments of a look-up among 32 values."""
    return [_constant(vector, values[:FLOATS]), index, _constant(vector, values[FLOATS:])]


def _encoder(signed: bool) -> Any:
    numbers = _numbers(signed)

    def code(builder: Any, x: Any) -> Any:
        bits = builder.and_(builder.bitcast(x, _INTS), _same(_INTS, 0x7FFFFFFF))
        found = numbers(builder, builder.bitcast(bits, _FLOATS))
        if not signed:
            return found
        below, most = builder.fcmp_ordered("<", x, _same(_FLOATS, 0.0)), _same(_INTS, 127)
        negative = _greatest(builder, builder.neg(found), _same(_INTS, -127))
        return builder.add(builder.select(below, negative, found), most)

    def encode(_context: Any, values: Any, _inverse: Any, codes: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds, short = signature.args, ir.VectorType(_BYTE, FLOATS)
            nothing = ir.Constant(_FLOATS, ir.Undefined)
            factor = builder.insert_element(nothing, arguments[1], ir.Constant(_INT, 0))
            factor = builder.shuffle_vector(factor, nothing, _same(_INTS, 0))
            with cgutils.for_range(builder, arguments[3]) as loop:
                start = builder.mul(loop.index, ir.Constant(loop.index.type, FLOATS))
                source = _pointer(context, builder, kinds[0], arguments[0], start, _FLOATS)
                found = code(builder, builder.fmul(builder.load(source, align=4), factor))
                target = _pointer(context, builder, kinds[2], arguments[2], start, short)
                builder.store(builder.trunc(found, short), target, align=1)
            return context.get_dummy_value()

        return types.void(values, types.float32, codes, count), generate

    return encode


_decode_whole: Any = intrinsic(_decode)
_encode_signed_whole: Any = intrinsic(_encoder(signed=True))
_encode_unsigned_whole: Any = intrinsic(_encoder(signed=False))


@njit(inline="always")
def _decode_vectors(codes, planes, values, size):
    _decode_whole(codes, planes, values, size // CODES)
    return size // CODES * CODES


@njit(inline="always")
def _encode_signed_vectors(values, inverse, codes, size):
    _encode_signed_whole(values, inverse, codes, size // FLOATS)
    return size // FLOATS * FLOATS


@njit(inline="always")
def _encode_unsigned_vectors(values, inverse, codes, size):
    _encode_unsigned_whole(values, inverse, codes, size // FLOATS)
    return size // FLOATS * FLOATS


@njit(inline="always")
def _none(_source, _by, _target, _size):
    return 0


decode_vectors = _decode_vectors if HAS_PERMUTATIONS else _none
"""In kernels: (codes, `byte_planes`, values, size) -> how many of the first `size` were written."""
encode_signed_vectors = _encode_signed_vectors if HAS_PERMUTATIONS else _none
"""In kernels: (values, inverse, codes, size) -> how many codes of values times `inverse` were written."""
encode_unsigned_vectors = _encode_unsigned_vectors if HAS_PERMUTATIONS else _none
"""As the last, of values that are not negative."""
