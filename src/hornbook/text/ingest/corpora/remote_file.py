"""Read a remote file as a local one: a transfer that breaks continues where it stopped."""

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from hornbook.errors import Exit, HornbookError, UsageError
from hornbook.files.durable import storage_errors
from hornbook.text.ingest.corpora.remote import (
    RemoteBody,
    Result,
    TransferError,
    is_http,
    open_remote,
    retry,
    shown,
    transfers,
)

_CHUNK = 2**20


class RemoteError(HornbookError, exit_code=Exit.USAGE):
    """A remote file cannot be read. It is no OSError or ValueError, which readers take for damage in the file."""


class RemoteFile(io.RawIOBase):
    """A remote file, open for reading at any offset. Raises RemoteError once the attempts are used up."""

    def __init__(self, url: str) -> None:
        self._url, self._offset = url, 0
        self._transfer = ExitStack()
        self._part: RemoteBody | None = None
        self._position = 0
        """Offset in the file of the next byte of `_part`."""
        self._first: RemoteBody | None = None
        """The first answer: later ones are of the same file."""

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Offset of the next byte."""
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to an offset; the transfer follows with the next read."""
        if whence == io.SEEK_CUR:
            offset += self._offset
        elif whence == io.SEEK_END:
            offset += self._retry(self._at_offset).size or 0
        self._offset = offset
        return offset

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, all that are left where it is negative; empty at the end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_CHUNK), b""))
        return self._retry(lambda: self._read(size))

    def close(self) -> None:
        """End the transfer."""
        self._drop()
        super().close()

    def _retry(self, act: Callable[[], Result]) -> Result:
        try:
            return retry(act, self._url)
        except UsageError as error:
            raise RemoteError(str(error)) from error

    def _read(self, size: int) -> bytes:
        if self._first is not None and self._first.size is not None and self._offset >= self._first.size:
            return b""
        try:
            with transfers(self._url):
                part = self._at_offset()
                data = part.body.read(size)
            if not data and size and part.size is not None and self._offset < part.size:
                raise TransferError(f"{self._offset} of {part.size} bytes came")
        except TransferError:
            self._drop()
            raise
        self._offset += len(data)
        self._position = self._offset
        return data

    def _at_offset(self) -> RemoteBody:
        """The transfer, moved to the offset or begun there."""
        if self._part is not None and self._position != self._offset:
            if is_http(self._url):
                self._drop()
            else:
                self._part.body.seek(self._offset)
                self._position = self._offset
        if self._part is None:
            self._part = self._begin()
        return self._part

    def _begin(self) -> RemoteBody:
        tag = self._first.tag if self._first else ""
        part = self._transfer.enter_context(open_remote(self._url, self._offset if tag else 0, tag, {}))
        self._first = self._first or part
        if (part.tag, part.size) != (self._first.tag, self._first.size):
            raise UsageError(f"{shown(self._url)} changed while it was read: start the same command again")
        left = self._offset - part.start  # a server without ranges sends all of it again
        while left > 0 and (data := part.body.read(min(left, _CHUNK))):
            left -= len(data)
        self._position = self._offset
        return part

    def _drop(self) -> None:
        self._part = None
        self._transfer.close()


@contextmanager
def open_url(url: str, *, at_random: bool) -> Iterator[IO[bytes]]:
    """Open a remote file. at_random: offsets are many, so a file of http(s) is copied to a temporary file first.

    Servers without Range requests could not be read otherwise. Raises RemoteError, StorageError.
    """
    with RemoteFile(url) as remote:
        if not (at_random and is_http(url)):
            handle: Any = remote
            yield handle
            return
        with tempfile.TemporaryFile() as whole:
            with storage_errors(Path(tempfile.gettempdir())):
                shutil.copyfileobj(remote, whole, _CHUNK)
            whole.seek(0)
            yield whole
