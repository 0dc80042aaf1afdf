"""Tables of columns as batches of rows: a child process with a limit of memory decodes them (`decoder_process`)."""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from hornbook.text.ingest.document import short
from hornbook.text.ingest.lines import CHUNK

EXPANSION, FREE = 200, 2**26
"""A page or a batch may expand to EXPANSION times the size of the file, and to FREE bytes in any case."""
_LARGEST_PAGE = 2**28
"""Bytes of a page of parquet at most."""
_COPIES = 3
"""Times that a page is in memory while it is decoded: as stored there, in a dictionary, in the rows."""
_OTHER_BYTES = 2**23
_DIED = "the process that decodes it died"
PROGRAM = Path(__file__).with_name("decoder_process.py")
_ONE_THREAD = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
"""So that the address space of the child grows by what it decodes, and by nothing else."""


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Rows that could not be decoded."""

    reason: str
    is_bomb: bool
    """Whether they take more memory than is allowed."""
    rows: int
    """0 where their number is not known."""


class _Process:
    """A child process. Kept for the next table where it has done all that it was asked."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._requests, self._answers = self._child.stdin, self._child.stdout
        self._stream: Any = None
        self.done = True
        """Whether it has answered all that it was asked."""

    def ask(self, handle: IO[bytes], request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The answers to a request, while the child reads from `handle`. Raises EOFError where it dies."""
        self.done, self._stream = False, None
        try:
            self._write(json.dumps(request).encode() + b"\n")
            while line := self._answers.readline():
                answer = json.loads(line)
                if "end" in answer:
                    self.done = True
                    return
                if "read" in answer:
                    self._read(handle, *answer["read"])
                else:
                    yield answer
        except BrokenPipeError:
            pass
        raise EOFError(_DIED)

    def batch(self) -> pa.RecordBatch:
        """The batch that follows an answer. Raises EOFError where it dies."""
        try:
            self._stream = self._stream or pa.ipc.open_stream(pa.PythonFile(self._answers, mode="r"))
            return self._stream.read_next_batch()
        except (OSError, pa.ArrowException, StopIteration) as error:
            raise EOFError(_DIED) from error

    def _read(self, handle: IO[bytes], start: int, size: int) -> None:
        handle.seek(start)
        while size:
            data = handle.read(min(size, CHUNK))
            if not data:
                raise OSError(0, "it became shorter while it was read")
            self._write(data)
            size -= len(data)

    def _write(self, data: bytes) -> None:
        self._requests.write(data)
        self._requests.flush()

    def end(self) -> None:
        """Stop it, whatever it does."""
        self._child.kill()
        self._child.communicate()


IDLE: list[_Process] = []
"""Processes that wait for the next table."""


@atexit.register
def _end_idle() -> None:
    while IDLE:
        IDLE.pop().end()


class Table:
    """A table of columns, "parquet" or "arrow", that a child process decodes. Close it in the end."""

    schema: pa.Schema
    rows: int
    groups: list[int]
    """Rows of each row group; Arrow is one group that is not listed."""

    def __init__(self, handle: IO[bytes], form: str) -> None:
        self._handle, self._form = handle, form
        self._process: _Process | None = None
        self._size = handle.seek(0, 2)
        if form == "parquet":
            self._memory = _COPIES * max(FREE, min(_LARGEST_PAGE, EXPANSION * self._size)) + _OTHER_BYTES
        else:  # a batch is in memory as stored and as decoded
            self._memory = max(FREE, EXPANSION * self._size) + self._size + _OTHER_BYTES

    def open(self) -> _Process:
        """A process that has read what is in the table. Raises ValueError where that is damaged."""
        process = self._process = IDLE.pop() if IDLE else _Process()
        try:
            (answer,) = process.ask(self._handle, {"open": self._form, "size": self._size, "memory": self._memory})
        except EOFError as error:
            raise ValueError(str(error)) from error
        if "error" in answer:
            raise ValueError(answer["error"])
        self.schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(answer["schema"])))
        self.rows, self.groups = answer["rows"], answer["groups"]
        return process

    def batches(self, group: int, names: list[str]) -> Iterator[pa.RecordBatch | Undecoded]:
        """The columns `names` of a row group."""
        try:
            process = self._process or self.open()
            for answer in process.ask(self._handle, {"group": group, "names": names, "memory": self._memory}):
                if "batch" in answer:
                    yield process.batch()
                    continue
                reason = short(ValueError(answer["error"]))
                if answer["bomb"]:
                    reason = f"it takes more than {self._memory} bytes to decode: {reason}"
                yield Undecoded(reason, answer["bomb"], answer["rows"])
        except EOFError as error:
            yield Undecoded(str(error), False, 0)
        finally:
            if self._process is not None and not self._process.done:
                self.close()

    def close(self) -> None:
        """Keep the process for the next table, unless it died or has more to say."""
        if self._process is not None:
            if self._process.done:
                IDLE.append(self._process)
            else:
                self._process.end()
            self._process = None
