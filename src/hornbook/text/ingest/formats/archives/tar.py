"""Members of a tar stream (POSIX ustar and pax, GNU long names) in order, with bounded memory and nothing on disk."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hornbook.text.ingest.compressions import DamagedStream
from hornbook.text.ingest.lines import Buffered

_BLOCK = 512
_LONGEST_HEADER = 2**16
_DIGITS = re.compile("[0-9]{1,18}")
_FILE, _FOLDER = (b"0", b"\0", b"7"), b"5"
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe"}


@dataclass(slots=True)
class Member:
    """A member; `read` it before the next one (the rest of it is skipped)."""

    name: str
    size: int
    kind: str
    """"file", "folder", or the name of another kind."""
    stream: Buffered
    left: int = 0

    def read(self, size: int, /) -> bytes:
        """The next bytes of the member. Raises DamagedStream where the archive ends in it."""
        if not self.left:
            return b""
        data = self.stream.read(min(size, self.left))
        if not data:
            raise DamagedStream(f"truncated archive: {self.left} bytes of the member are missing")
        self.left -= len(data)
        return data


def tar_members(stream: Buffered) -> Iterator[Member]:
    """All members but the headers of others. Raises DamagedStream."""
    extended: dict[str, str] = {}
    while len(header := stream.peek(_BLOCK)) == _BLOCK and header.strip(b"\0"):
        stream.read(_BLOCK)
        size = _number(header[124:136])
        if sum(header[:148]) + sum(header[156:]) + 8 * 32 != _number(header[148:156]):
            raise DamagedStream("damaged tar: a header's checksum is wrong")
        kind = header[156:157]
        if kind in (b"x", b"g", b"L", b"K"):
            fields = _extended_header(stream, kind, size)
            extended |= fields if kind != b"g" else {}
            continue
        name = extended.get("path") or _name(header)
        size = int(extended["size"]) if _DIGITS.fullmatch(extended.get("size", "")) else size
        extended = {}
        words = "file" if kind in _FILE else "folder" if kind == _FOLDER else _KINDS.get(kind, f"of type {kind!r}")
        stored = 0 if kind in _KINDS or kind == _FOLDER else size
        member = Member(name, size, words, stream, stored)
        yield member
        _pass_over(stream, member.left + -stored % _BLOCK)
    if header and header.strip(b"\0"):
        raise DamagedStream("damaged tar: it ends within a header")


def _pass_over(stream: Buffered, size: int) -> None:
    _, done = stream.take(size, -1)
    if done < size:
        raise DamagedStream(f"truncated archive: {size - done} bytes are missing")


def _number(field: bytes) -> int:
    """Octal digits, or base 256 where the first bit is set (GNU)."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.strip(b" \0") or b"0"
    if digits.translate(None, b"01234567"):
        raise DamagedStream("damaged tar: a header holds a number that is none")
    return int(digits, 8)


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:262] == b"ustar" and header[262:263] == b"\0" else ""
    name = _text(header[:100])
    return f"{prefix}/{name}" if prefix else name


def _extended_header(stream: Buffered, kind: bytes, size: int) -> dict[str, str]:
    """Path and size of the next member, where they do not fit into the fields of its own header."""
    data, done = stream.take(size, _LONGEST_HEADER)
    if data is None:
        raise DamagedStream(f"damaged tar: a header of {size} bytes, {_LONGEST_HEADER} are read")
    if done < size:
        raise DamagedStream("damaged tar: it ends within a header")
    _pass_over(stream, -size % _BLOCK)
    if kind == b"L":
        return {"path": _text(data)}
    fields: dict[str, str] = {}
    while data and kind == b"x":
        length, _, rest = data.partition(b" ")
        end = int(length) - len(length) - 1 if length.isdigit() and len(length) < 8 else 0
        if end <= 0:
            raise DamagedStream("damaged tar: an extended header cannot be read")
        name, _, value = rest[:end].rstrip(b"\n").partition(b"=")
        fields[_text(name)] = _text(value)
        data = rest[end:]
    return {name: value for name, value in fields.items() if name in ("path", "size")}
