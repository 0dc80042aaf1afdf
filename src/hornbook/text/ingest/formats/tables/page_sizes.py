"""The memory that pages of parquet and batches of Arrow declare, read before they are decoded.

parquet: headers of pages in Thrift's compact protocol (parquet-format, "Data Pages"). Arrow: messages in flatbuffers
(Arrow columnar format, "Serialization and Interprocess Communication").
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from hornbook.text.ingest.lines import CHUNK

EXPANSION, FREE = 200, 2**26
"""A page or a batch may expand to EXPANSION times its size, and to FREE bytes in any case."""
LARGEST_PAGE = 2**28
"""Bytes of a page at most; what decodes it takes several times as much."""
_DICTIONARY, _DELTA_BYTE_ARRAY = 2, 7
_HEADER_BYTES = (1 << 10, 1 << 16, 1 << 24)
_DEEPEST = 16


class Excess(Exception):
    """A page or batch declares more memory than is allowed. The text is the reason."""


class InPieces:
    """A file whose reads take no more memory than the bytes that are left, whatever length is requested."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.closed = False

    def read(self, size: int = -1, /) -> bytes:
        """So many bytes, fewer at the end of the file; all that are left where `size` is negative."""
        parts = []
        while size and (data := self._handle.read(CHUNK if size < 0 else min(size, CHUNK))):
            parts.append(data)
            size -= len(data) if size > 0 else 0
        return b"".join(parts)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._handle.seek(offset, whence)

    def tell(self) -> int:
        return self._handle.tell()

    def close(self) -> None:
        """Nothing: the file belongs to who opened it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of a column in a row group: where they lie in the file."""

    path: str
    """Names from the column down to what holds its values, joined by points."""
    start: int
    end: int


def parquet_chunks(handle: InPieces) -> list[list[Chunk]]:
    """The column chunks of each row group, from the footer. Raises ValueError where it is damaged.

    pyarrow's own view of them (`RowGroupMetaData.column`) ends the process where statistics of a chunk are damaged.
    """
    size = handle.seek(0, 2)
    handle.seek(max(0, size - 8))
    length = int.from_bytes(handle.read(4), "little")
    handle.seek(max(0, size - 8 - length))
    try:
        footer, _ = _Thrift(handle.read(length)).fields(0)
        return [[_chunk(column[3]) for column in group[1]] for group in footer[4]]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("the footer cannot be read") from error


def _chunk(column: dict[int, Any]) -> Chunk:
    start = min(column[9], column.get(11) or column[9])
    return Chunk(b".".join(column[3]).decode("utf-8", "replace"), start, start + column[7])


def parquet_pages(handle: InPieces, chunk: Chunk) -> Iterator[tuple[int, bool]]:
    """(decompressed bytes, whether rows may share its values, so that it does not bound their size) of each page.

    Raises Excess where a page must not be decoded, ValueError where its header is damaged.
    """
    offset = chunk.start
    while offset < chunk.end:
        header, length = _page_header(handle, offset)
        expanded, size, kind = header.get(2), header.get(3), header.get(1)
        if not (isinstance(expanded, int) and isinstance(size, int) and expanded >= 0 and size >= 0):
            raise ValueError("a page's header lacks its sizes")
        data = header.get(5) or header.get(8) or {}
        if not isinstance(data, dict):
            raise ValueError("a page's header holds a number where it describes the page")
        encoding = data.get(2 if 5 in header else 4)
        limit = max(FREE, min(LARGEST_PAGE, EXPANSION * size))
        if expanded > limit:
            reason = f"a page of {size} bytes expands to {expanded}, at most {limit}"
            raise Excess(f"column {chunk.path[:60]!a}: {reason}")
        yield expanded, kind == _DICTIONARY or encoding == _DELTA_BYTE_ARRAY
        offset += length + size


def _page_header(handle: InPieces, offset: int) -> tuple[dict[int, Any], int]:
    """(fields by number, bytes of the header); it may hold statistics of any length."""
    for size in _HEADER_BYTES:
        handle.seek(offset)
        data = handle.read(size)
        try:
            return _Thrift(data).fields(0)
        except IndexError:
            if len(data) < size:
                break
    raise ValueError("a page's header cannot be read")


class _Thrift:
    """A struct in Thrift's compact protocol. Reading beyond the end raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def fields(self, depth: int) -> tuple[dict[int, Any], int]:
        """(fields by number: integers, and structs as dicts; bytes read)."""
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        values: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            values[number] = self._value(head & 15, depth)
        return values, self._position

    def _byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("it has a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _skip(self, size: int) -> None:
        if self._position + size > len(self._data):
            raise IndexError
        self._position += size

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # true and false have no bytes of their own
            return kind
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 12:
            return self.fields(depth + 1)[0]
        if kind in (3, 7, 8):
            size = {3: 1, 7: 8}.get(kind) or self._varint()
            self._skip(size)
            return self._data[self._position - size : self._position] if kind == 8 else None
        if kind in (9, 10):
            return self._list(depth)
        raise ValueError("it has a value of an unknown type")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        kind = head & 15
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self._data):
            raise IndexError
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        if kind in (1, 2):
            self._skip(count)
            return []
        return [self._value(kind, depth + 1) for _ in range(count)]


def check_buffers(body: bytes, size: int, buffers: list[tuple[int, int]]) -> None:
    """Raises Excess where compressed buffers must not be decoded. size: bytes of the whole body, as declared."""
    expanded = sum(_expanded(body, *buffer) for buffer in buffers)
    limit = max(FREE, EXPANSION * size)
    if expanded > limit:
        raise Excess(f"a batch of {size} bytes expands to {expanded}, at most {limit}")


def _expanded(body: bytes, offset: int, size: int) -> int:
    """Decompressed bytes of a buffer, which starts with that number, or with -1 where it is stored uncompressed."""
    if size < 8 or offset < 0 or offset + 8 > len(body):
        return max(size, 0)
    return max(int.from_bytes(body[offset : offset + 8], "little", signed=True), size)


def arrow_batch(metadata: bytes) -> tuple[int, int, list[tuple[int, int]]]:
    """(bytes of its body, rows, (offset in the body, bytes) of each buffer) of a message of an Arrow stream.

    Messages that are no batch of records have 0 rows, those that are not compressed no buffers. Raises ValueError.
    """
    try:
        table = _Table(metadata, struct.unpack_from("<I", metadata)[0])
        body, kind = table.number(3, "<q"), table.number(1, "<B")
        batch = table.table(2) if kind in (2, 3) else None
        if batch is not None and kind == 2:  # a dictionary's values are a batch of one column
            batch = batch.table(1)
        if body < 0:
            raise ValueError("a message's length is negative")
        if batch is None:
            return body, 0, []
        packed = batch.table(3) is not None
        return body, batch.number(0, "<q") if kind == 3 else 0, list(batch.pairs(2)) if packed else []
    except struct.error as error:
        raise ValueError("a message's metadata cannot be read") from error


class _Table:
    """A table of flatbuffers. Reading beyond the end raises struct.error."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset
        self._fields = offset - struct.unpack_from("<i", data, offset)[0]
        if self._fields < 0:
            raise struct.error

    def _field(self, number: int) -> int:
        """Place of a field; 0 where the table does not say it."""
        size = struct.unpack_from("<H", self._data, self._fields)[0]
        inside = 4 + 2 * number
        offset = struct.unpack_from("<H", self._data, self._fields + inside)[0] if inside + 2 <= size else 0
        return self._offset + offset if offset else 0

    def number(self, number: int, form: str) -> int:
        offset = self._field(number)
        return struct.unpack_from(form, self._data, offset)[0] if offset else 0

    def table(self, number: int) -> "_Table | None":
        offset = self._field(number)
        return _Table(self._data, offset + struct.unpack_from("<I", self._data, offset)[0]) if offset else None

    def pairs(self, number: int) -> Iterator[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        offset = self._field(number)
        if offset:
            offset += struct.unpack_from("<I", self._data, offset)[0]
            count = struct.unpack_from("<I", self._data, offset)[0]
            if offset + 4 + 16 * count > len(self._data):
                raise struct.error
            yield from struct.iter_unpack("<qq", self._data[offset + 4 : offset + 4 + 16 * count])
