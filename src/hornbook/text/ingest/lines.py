"""Read the bytes of an input file with bounded memory: hashed, as a whole, by lines, pieces, lengths or marks."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO

import xxhash

from hornbook.text.ingest.charsets import BOM
from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.corpora.remote_file import open_url
from hornbook.text.ingest.inputs import AT_RANDOM, InputFile, is_url

CHUNK = 1 << 18
BEGINNING = 512
"""Bytes that are kept of a line, or of another row, beyond the limit."""
_EMPTY_LINES = re.compile(rb"\n+")


class HashingFile:
    """Passes reads through and hashes all bytes (xxh3_128), so that an input is read only once."""

    def __init__(self, file: Stream) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def add(self, other: "HashingFile") -> None:
        """Let the hash be of another file too; what was not read of both yet is read now."""
        self.digest()
        self._hash.update(other.digest().encode())

    def digest(self) -> str:
        """Hash of the whole file: what was not read yet is read now."""
        while self.read(CHUNK):
            pass
        return self._hash.hexdigest()


def digest_input(file: InputFile, hashing: HashingFile) -> str:
    """Hash of a whole file that is being read, and of those beside it. Raises OSError."""
    for path in file.beside:
        with open_input(replace(file, path=path)) as raw:
            hashing.add(HashingFile(raw))
    return hashing.digest()


@contextmanager
def open_input(file: InputFile) -> Iterator[IO[bytes]]:
    """Open an input for reading bytes as stored; a local path must still be a regular file."""
    if is_url(file.path):
        with open_url(file.path, at_random=file.format in AT_RANDOM) as handle:
            yield handle
        return
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file", file.path)
        yield handle


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its line feed. `data` of an overlong line is only its beginning."""

    number: int
    data: bytes
    size: int
    """Bytes of the whole line."""
    ended: bool = True
    """Whether a line feed followed."""
    count: int = 1
    """Lines it stands for: a run of empty lines is one."""
    overlong: bool = False
    """The line was longer than the limit, so it was not kept."""


def read_lines(stream: Stream, limit: int, number: int = 1) -> Iterator[Line]:
    """Cut a stream at line feeds; at most about `limit` bytes are held. The first line is called `number`.

    A byte order mark at the start of line 1 is removed.
    """
    kept, size = [], 0  # of the line that is not ended yet: pieces of it, and all its bytes, kept or not
    first = number == 1
    while chunk := stream.read(CHUNK):
        if first:
            chunk, first = chunk.removeprefix(BOM), False
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            if end == start and not size:
                run = _EMPTY_LINES.match(chunk, start)
                assert run is not None
                yield Line(number, b"", 0, count=run.end() - start)
                number, start = number + run.end() - start, run.end()
                continue
            size += end - start
            _hold(kept, chunk[start:end], size, limit)
            yield Line(number, b"".join(kept), size, overlong=size > limit)
            number, kept, size, start = number + 1, [], 0, end + 1
        size += len(chunk) - start
        _hold(kept, chunk[start:], size, limit)
    if size:
        yield Line(number, b"".join(kept), size, ended=False, overlong=size > limit)


class _CarriageReturns:
    """A stream whose lines end with CR alone, with LF instead."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        return self._stream.read(size).replace(b"\r", b"\n")


def with_line_feeds(stream: Stream) -> Stream:
    """A stream of lines as they are; with LF at their ends where the beginning has CR alone, as old Macs wrote it."""
    stream = Buffered(stream)
    ahead = stream.peek(CHUNK)
    return _CarriageReturns(stream) if has_returns_alone(ahead) else stream


def has_returns_alone(beginning: bytes) -> bool:
    """Whether lines end with CR alone."""
    return b"\r" in beginning and b"\n" not in beginning


def _hold(kept: list[bytes], piece: bytes, size: int, limit: int) -> None:
    """Keep a piece of a line while the line is within the limit; of a longer line only the beginning stays."""
    if size <= limit:
        kept.append(piece)
    else:
        kept[:] = [b"".join([*kept, piece[:BEGINNING]])[:BEGINNING]]


def read_pieces(stream: Stream, limit: int) -> Iterator[tuple[int, bytes, bool]]:
    """(first line, bytes, whether it is the last) of pieces of a text of at most `limit` bytes.

    They are cut after a line feed if there is one, else between characters.
    """
    buffer, line = bytearray(), 1
    while chunk := stream.read(CHUNK):
        buffer += chunk
        while len(buffer) > limit:
            cut = _cut(buffer, limit)
            data = bytes(buffer[:cut])
            del buffer[:cut]
            yield line, data, False
            line += data.count(b"\n")
    yield line, bytes(buffer), True


def _cut(buffer: bytearray, limit: int) -> int:
    end = buffer.rfind(b"\n", 0, limit) + 1
    if end:
        return end
    end = limit
    while end > limit - 4 and buffer[end] & 0xC0 == 0x80:
        end -= 1
    return end


def read_whole(stream: Stream, limit: int) -> tuple[bytes | None, int]:
    """(all bytes, their number) of a stream; of a longer one than `limit` only the number, and nothing is held."""
    kept, size = [], 0
    while chunk := stream.read(CHUNK):
        size += len(chunk)
        if size <= limit:
            kept.append(chunk)
        else:
            kept.clear()
    return (b"".join(kept), size) if size <= limit else (None, size)


class Buffered:
    """A stream with the bytes that were read ahead."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._buffer, self._start = stream, bytearray(), 0

    def _fill(self) -> bool:
        chunk = self._stream.read(CHUNK)
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += chunk
        return bool(chunk)

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end; the position does not move."""
        while len(self._buffer) - self._start < size and self._fill():
            pass
        return bytes(self._buffer[self._start : self._start + size])

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        if self._start == len(self._buffer) and not self._fill():
            return b""
        data = bytes(self._buffer[self._start : self._start + size])
        self._start += len(data)
        return data

    def take(self, size: int, limit: int) -> tuple[bytes | None, int]:
        """(the next `size` bytes, how many there were); None instead of the bytes where `size` is beyond `limit`."""
        chunks: list[bytes] = []
        done = 0
        while done < size and (data := self.read(min(size - done, CHUNK))):
            done += len(data)
            if size <= limit:
                chunks.append(data)
        return (b"".join(chunks) if size <= limit else None), done

    def until(self, mark: bytes, limit: int) -> tuple[bytes, int, bool]:
        """(the bytes up to the next `mark` and with it, their number, whether it was found); about `limit` are held."""
        chunks: list[bytes] = []
        size = 0

        def pass_over(end: int) -> None:
            nonlocal size
            if size < limit:
                chunks.append(bytes(self._buffer[self._start : end]))
            size += end - self._start
            self._start = end

        while True:
            index = self._buffer.find(mark, self._start)
            if index >= 0:
                pass_over(index + len(mark))
                return b"".join(chunks), size, True
            # the mark may lie across two reads, so all but its length less one is passed over
            pass_over(max(self._start, len(self._buffer) - len(mark) + 1))
            if not self._fill():
                pass_over(len(self._buffer))
                return b"".join(chunks), size, False
