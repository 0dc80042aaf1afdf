"""Decompress streams of gzip, bz2, xz and zstd with bounded memory; the bytes before a damage are kept.

A file is one member or several, one after the other. Zeros after a member are padding (RFC 1952 does not mention them,
but tape blocks end so, and `gzip -d` skips them; the specification of xz has them).
"""

import bz2
import lzma
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import zstandard

EXPANSION, FREE = 1000, 2**28
"""A stream may expand to EXPANSION times what was read of it, and to FREE bytes in any case; text never does."""
_INPUT = {"zstd": 1 << 10}
"""Bytes given to a decoder at once; 32 KiB where none are named. The zstd decoder returns all output at once, at most
128 KiB for every 4 bytes, and loses the output of an input that is damaged: so it gets little."""
_PIECE = 1 << 16
_XZ_MEMORY, _ZSTD_WINDOW = 2**28, 2**27
_ERRORS = (lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError, ValueError, EOFError)


class DamagedStream(Exception):
    """A stream ends early, cannot be decoded, or expands to more than is allowed. The text is the reason."""


class Stream(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        ...


class _Gzip:
    """A member of gzip."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(31)
        self._full = False
        """The last output was as long as the limit, so the decoder may hold more."""
        self._error: zlib.error | None = None

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not (self._decoder.unconsumed_tail or self._full or self._error)

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most `max_length` bytes. Raises zlib.error once all output before the damage has been returned."""
        if self._error is not None:
            raise self._error
        data, before = self._decoder.unconsumed_tail + data, self._decoder.copy()
        try:
            output = self._decoder.decompress(data, max_length)
        except zlib.error as error:
            self._error = error
            output = _until_damage(before, data)  # at most `max_length`, or the decoder would have stopped before
            if not output:
                raise
        self._full = len(output) == max_length
        return output


def _until_damage(decoder: "zlib._Decompress", data: bytes) -> bytes:
    """The output before the byte at which the decoder fails."""
    chunks = []
    with suppress(zlib.error):
        for index in range(len(data)):
            chunks.append(decoder.decompress(data[index : index + 1]))
    return b"".join(chunks)


class _Zstd:
    """A frame of zstd."""

    def __init__(self) -> None:
        self._decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        self._waiting = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._decoder.eof and not self._waiting

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most `max_length` bytes of the output of `data`, or of the output that is left."""
        if not self._waiting:
            self._waiting = memoryview(self._decoder.decompress(data))
        piece, self._waiting = self._waiting[:max_length], self._waiting[max_length:]
        return bytes(piece)


_Decoder = _Gzip | _Zstd | bz2.BZ2Decompressor | lzma.LZMADecompressor
"""One member; the interface is that of bz2 and lzma."""


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": _Gzip,
    "bz2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY),
    "zstd": _Zstd,
}


class Members:
    """The decompressed bytes of all members of a stream."""

    def __init__(self, file: Stream, compression: str) -> None:
        self._file, self._rest, self.name = file, b"", compression
        self._decoder: _Decoder | None = None
        self._members, self._begun = 0, False
        self.taken = 0
        """Compressed bytes read so far."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end. Raises DamagedStream."""
        while True:
            if self._decoder is None and not self._begin():
                return b""
            assert self._decoder is not None
            if self._decoder.needs_input and not self._rest and not self._fill():
                raise DamagedStream(f"damaged {self.name}: it ends early")
            try:
                data = self._decoder.decompress(self._rest, min(size, _PIECE))
            except _ERRORS as error:
                raise DamagedStream(self._reason(error)) from error
            self._rest, self._begun = b"", True
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, None
                self._members += 1
            if data:
                return data

    def _fill(self) -> bool:
        self._rest = self._file.read(_INPUT.get(self.name, 1 << 15))
        self.taken += len(self._rest)
        return bool(self._rest)

    def _begin(self) -> bool:
        """Go to the start of the next member, past zeros after the last one; False at the end."""
        while self._rest or self._fill():
            if self._members:
                self._rest = self._rest.lstrip(b"\0")
            if self._rest:
                self._decoder, self._begun = _DECODERS[self.name](), False
                return True
        return False

    def _reason(self, error: Exception) -> str:
        if self._members and not self._begun:
            return f"damaged {self.name}: what follows its {self._members} members is not {self.name} ({error})"
        return f"damaged {self.name}: {error}"


class _Limited:
    """Decompressed bytes, up to what no text expands to."""

    def __init__(self, members: Members) -> None:
        self._members, self._given = members, 0

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end. Raises DamagedStream."""
        limit = max(FREE, EXPANSION * self._members.taken)
        if self._given > limit:
            most = f"{limit} bytes, the larger of {FREE} and {EXPANSION} times what was read of it"
            raise DamagedStream(f"{self._members.name} bomb: it expands to more than {most}")
        data = self._members.read(size)
        self._given += len(data)
        return data


def decompressed(file: Stream, compression: str | None, *, counted: bool = False) -> Stream:
    """The decompressed bytes of a file. Reading raises DamagedStream where the stream is damaged or expands too far.

    counted: the caller bounds the expansion itself (`archives.Budget`).
    """
    if compression is None:
        return file
    members = Members(file, compression)
    return members if counted else _Limited(members)
