"""Members of a zip file, one entry of its directory at a time: memory does not grow with their number."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from hornbook.text.ingest.compressions import DamagedStream
from hornbook.text.ingest.lines import CHUNK

_END, _ENTRY, _LOCAL = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
_END64, _LOCATOR = b"PK\x06\x06", b"PK\x06\x07"
_LONGEST_COMMENT = 2**16
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _UTF8 = 0x1, 0x800
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
"""Kinds of extra fields."""
_LINK = 0o120000
_TYPE = 0o170000


@dataclass(slots=True)
class ZipMember:
    """A member; reading it does not depend on the others."""

    name: str
    kind: str
    """"file", "folder", or the name of another kind."""
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    handle: IO[bytes]
    _left: int = -1
    _check: int = 0
    _decoder: "zlib._Decompress | None" = field(default=None)
    _done: bool = False

    def read(self, size: int, /) -> bytes:
        """The next bytes. Raises DamagedStream where the member is damaged, its checksum too."""
        if self._left < 0:
            self._open()
        size = min(size, CHUNK)
        data = b""
        while not data and not self._done:
            data = self._inflate(size) if self.method == _DEFLATED else self._stored(size)
        if not data and self._check != self.crc:
            raise DamagedStream("damaged zip: the checksum of the member is wrong")
        self._check = zlib.crc32(data, self._check)
        return data

    def _open(self) -> None:
        self.handle.seek(self.offset)
        header = self.handle.read(30)
        if len(header) < 30 or not header.startswith(_LOCAL):
            raise DamagedStream("damaged zip: the member is not where the directory says")
        name, extra = struct.unpack("<HH", header[26:30])
        self.offset += 30 + name + extra
        if self.offset + self.packed > self.handle.seek(0, 2):
            raise DamagedStream("truncated archive: the member's end is missing")
        if self.method == _STORED and self.packed != self.size:
            raise DamagedStream(f"damaged zip: the member is stored, with sizes {self.packed} and {self.size}")
        self._left = self.packed
        self._decoder = zlib.decompressobj(-15) if self.method == _DEFLATED else None

    def _stored(self, size: int) -> bytes:
        self.handle.seek(self.offset)
        data = self.handle.read(min(size, self._left))
        self.offset, self._left = self.offset + len(data), self._left - len(data)
        if not data and self._left:
            raise DamagedStream("truncated archive: the member's end is missing")
        self._done = not data
        return data

    def _inflate(self, size: int) -> bytes:
        assert self._decoder is not None
        rest = self._decoder.unconsumed_tail or self._stored(CHUNK)
        try:
            data = self._decoder.decompress(rest, size) if rest else self._decoder.flush()
        except zlib.error as error:
            raise DamagedStream(f"damaged zip: {error}") from error
        if not rest and not self._decoder.eof:
            raise DamagedStream("damaged zip: the member ends early")
        self._done = self._decoder.eof
        return data


def zip_members(handle: IO[bytes]) -> Iterator[ZipMember]:
    """All entries of the directory in order. Raises DamagedStream."""
    offset, size, count, before = _directory(handle)
    end = offset + size
    for _ in range(count):
        handle.seek(offset)
        entry = handle.read(46)
        if len(entry) < 46 or not entry.startswith(_ENTRY) or offset + 46 > end:
            raise DamagedStream("damaged zip: its directory ends early")
        flags, method = struct.unpack("<HH", entry[8:12])
        crc, packed, size, *lengths = struct.unpack("<IIIHHH", entry[16:34])
        attributes, local = struct.unpack("<II", entry[38:46])
        name, extra = handle.read(lengths[0]), handle.read(lengths[1])
        offset += 46 + sum(lengths)
        packed, size, local = _wide(extra, packed, size, local)
        text = _name(name, extra, flags)
        yield ZipMember(text, _kind(text, flags, method, attributes), method, crc, packed, size, local + before, handle)


def _kind(name: str, flags: int, method: int, attributes: int) -> str:
    if name.endswith("/"):
        return "folder"
    if attributes >> 16 & _TYPE == _LINK:
        return "a symbolic link"
    if flags & _ENCRYPTED:
        return "encrypted"
    return "file" if method in (_STORED, _DEFLATED) else f"compressed by method {method}"


def _directory(handle: IO[bytes]) -> tuple[int, int, int, int]:
    """(offset, bytes, entries) of the directory, and how many bytes lie before the archive (as in a script that unpacks
    itself): the first record from the end whose directory begins with an entry.
    """
    length = handle.seek(0, 2)
    start = max(0, length - _LONGEST_COMMENT - 22)
    handle.seek(start)
    tail = handle.read()
    record, problem = len(tail), "it has no directory at its end"
    while (record := tail.rfind(_END, 0, record)) >= 0:
        if len(tail) - record < 22:
            continue
        count, size, offset = struct.unpack("<HII", tail[record + 10 : record + 20])
        end, locator = start + record, tail[record - 20 : record] if record >= 20 else b""
        if locator.startswith(_LOCATOR):
            for place in (struct.unpack("<Q", locator[8:16])[0], end - 76):
                handle.seek(min(place, length))
                wide = handle.read(56)
                if len(wide) == 56 and wide.startswith(_END64):
                    count, size, offset = struct.unpack("<QQQ", wide[32:56])
                    end = min(place, length)
                    break
        if offset + size > end:
            problem = "its directory lies outside of it"
            continue
        for before in (0, end - size - offset):
            handle.seek(offset + before)
            if handle.read(4) == _ENTRY:
                return offset + before, size, count, before
        problem = "its directory is not where its end says" if count else ""
    if not problem:
        return 0, 0, 0, 0
    raise DamagedStream(f"damaged zip: {problem}")


def _extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """(kind, data) of the extra fields of an entry."""
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        yield kind, extra[4 : 4 + length]
        extra = extra[4 + length :]


def _name(name: bytes, extra: bytes, flags: int) -> str:
    """The name of an entry: that of Info-ZIP's field where it was made of this name (APPNOTE.TXT, 4.6.9)."""
    for kind, data in _extra_fields(extra):
        if kind == _UNICODE_PATH and len(data) > 5 and data[:5] == struct.pack("<BI", 1, zlib.crc32(name)):
            return data[5:].decode("utf-8", "backslashreplace")
    return name.decode("utf-8" if flags & _UTF8 else "cp437", "backslashreplace")


def _wide(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """Sizes and offset of an entry, from its zip64 field where they do not fit into 32 bits."""
    values = {"size": size, "packed": packed, "offset": offset}
    for kind, data in _extra_fields(extra):
        position = 0
        for name, value in values.items():
            if kind == _ZIP64 and value == 0xFFFFFFFF and len(data) >= position + 8:
                (values[name],) = struct.unpack_from("<Q", data, position)
                position += 8
    return values["packed"], values["size"], values["offset"]
