"""Streams of gzip, bz2, xz and zstd, decompressed with bounded memory; what stands before a damage is kept.

A file is one member or several, one after the other. Zeros behind a member are padding (RFC 1952 says nothing of them,
but tape blocks end so, and `gzip -d` passes over them; xz has them by its specification).
"""

import bz2
import lzma
import zlib
from contextlib import suppress
from typing import Protocol

import zstandard

_INPUT = {"zstd": 1 << 10}
"""Bytes given to a decoder at once, else 32 KiB. That of zstd gives all that comes of them: at most 128 KiB for every
4, and it keeps to itself what came before a damage in them."""
_PIECE = 1 << 16
_XZ_MEMORY, _ZSTD_WINDOW = 2**28, 2**27
_ERRORS = (lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError, ValueError, EOFError)


class DamagedStream(Exception):
    """The compressed stream ends early or is not what its ending says."""


class Stream(Protocol):
    """Something to read bytes from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        ...


class _Gzip:
    """A member of gzip."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(31)
        self._full = False
        """The last piece was as long as asked for, so the decoder may hold more."""
        self._error: zlib.error | None = None
        self._saved = memoryview(b"")

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
        """At most so many bytes. Raises zlib.error when all that comes before the damage was given."""
        if self._error is None:
            data, before = self._decoder.unconsumed_tail + data, self._decoder.copy()
            try:
                output = self._decoder.decompress(data, max_length)
            except zlib.error as error:
                self._error, self._saved = error, memoryview(_until_damage(before, data))
            else:
                self._full = len(output) == max_length
                return output
        if not self._saved:
            raise self._error
        output, self._saved = self._saved[:max_length], self._saved[max_length:]
        return bytes(output)


def _until_damage(decoder: "zlib._Decompress", data: bytes) -> bytes:
    """What comes out before the byte at which the decoder fails."""
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
        """At most so many bytes of what `data` became, or of what is left of it."""
        if not self._waiting:
            self._waiting = memoryview(self._decoder.decompress(data))
        piece, self._waiting = self._waiting[:max_length], self._waiting[max_length:]
        return bytes(piece)


_Decoder = _Gzip | _Zstd | bz2.BZ2Decompressor | lzma.LZMADecompressor
"""One member; the interface is that of bz2 and lzma."""


def _decoder(compression: str) -> _Decoder:
    match compression:
        case "gzip":
            return _Gzip()
        case "bz2":
            return bz2.BZ2Decompressor()
        case "xz":
            return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    return _Zstd()


class Members:
    """A stream of members, as the plain bytes of all."""

    def __init__(self, file: Stream, compression: str) -> None:
        self._file, self._rest, self._name = file, b"", compression
        self._decoder: _Decoder | None = None
        self._members, self._begun = 0, False

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end. Raises DamagedStream."""
        while True:
            if self._decoder is None and not self._begin():
                return b""
            assert self._decoder is not None
            if self._decoder.needs_input and not self._rest and not self._fill():
                raise DamagedStream(f"damaged {self._name}: it ends early")
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
        self._rest = self._file.read(_INPUT.get(self._name, 1 << 15))
        return bool(self._rest)

    def _begin(self) -> bool:
        """Stand before a member; False at the end. Zeros behind a member are passed over."""
        while self._rest or self._fill():
            if self._members:
                self._rest = self._rest.lstrip(b"\0")
            if self._rest:
                self._decoder, self._begun = _decoder(self._name), False
                return True
        return False

    def _reason(self, error: Exception) -> str:
        if self._members and not self._begun:
            return f"damaged {self._name}: what follows its {self._members} members is not {self._name} ({error})"
        return f"damaged {self._name}: {error}"


def decompressed(file: Stream, compression: str | None) -> Stream:
    """The plain bytes of a file. Reading raises DamagedStream where a compressed stream is damaged."""
    return file if compression is None else Members(file, compression)
