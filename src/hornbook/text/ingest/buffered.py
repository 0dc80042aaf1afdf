"""Read a stream of bytes by length or up to a mark, with bounded memory."""

from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.lines import CHUNK


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
            pass_over(max(self._start, len(self._buffer) - len(mark) + 1))
            if not self._fill():
                pass_over(len(self._buffer))
                return b"".join(chunks), size, False
