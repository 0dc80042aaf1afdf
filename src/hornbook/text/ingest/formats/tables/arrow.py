"""Arrow as Hugging Face datasets keep it on disk, message by message.

`datasets.save_to_disk` writes Arrow streams of the stored rows in order, so pyarrow reads its folders as they are. An
Arrow file is read as the stream in it: its footer only repeats where the batches are.
"""

from collections.abc import Iterator

import pyarrow as pa

from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.document import DAMAGE, ReadOptions, Row, reject, short
from hornbook.text.ingest.formats.tables.columns import batch_rows, wanted_columns
from hornbook.text.ingest.formats.tables.page_sizes import Excess, InPieces, arrow_batch, check_buffers
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import open_input

_MAGIC, _MAGIC_BYTES = b"ARROW1", 8
_CONTINUED = b"\xff\xff\xff\xff"


class _Messages:
    """Gives a stream to pyarrow message by message, after a look at what each would take in memory.

    A body is held where it is compressed, for its buffers begin with their sizes.
    """

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._ready, self._left = memoryview(b""), 0
        self.rows = 0
        """Rows of the batch that is being read; 0 where the message is none."""
        self.closed = False

    @property
    def whole(self) -> bool:
        """Whether all of the message was there, so that the next one begins here."""
        return not self._ready and not self._left

    def read(self, size: int, /) -> bytes:
        """So many bytes of a message, fewer at its end. Raises ValueError where it is damaged."""
        if self.whole:
            self._begin()
        if self._ready:
            piece, self._ready = self._ready[:size], self._ready[size:]
            return bytes(piece)
        data = self._source.read(min(size, self._left))
        self._left -= len(data)
        return data

    def _begin(self) -> None:
        self.rows = 0
        head = self._source.read(4)
        if head == _CONTINUED:
            head += self._source.read(4)
        size = int.from_bytes(head[-4:], "little")
        if len(head) < 4 or not size:  # the end
            self._ready = memoryview(head)
            return
        metadata = self._source.read(size)
        message = head + metadata
        if len(metadata) == size:
            declared, self.rows, buffers = arrow_batch(metadata)
            body = self._source.read(declared) if buffers else b""
            self._left = declared - len(body)
            check_buffers(body, declared, buffers)
            message += body
        self._ready = memoryview(message)

    def close(self) -> None:
        """Nothing: the file belongs to who opened it."""


def read_arrow(file: InputFile, _: Stream, options: ReadOptions) -> Iterator[Row]:
    """An Arrow stream, or an Arrow file; a damaged batch is one `Rejected` that counts all of its rows."""
    with open_input(file) as handle:
        source = InPieces(handle)
        source.seek(_MAGIC_BYTES if source.read(len(_MAGIC)) == _MAGIC else 0)
        messages = _Messages(source)
        try:
            table = pa.ipc.open_stream(pa.PythonFile(messages, mode="r"))
            try:
                names = wanted_columns(table.schema, options)
            except UnfitRow as why:
                yield reject(file, 0, str(why), size=file.size, rows=max(1, sum(len(batch) for batch in table)))
                return
        except (*DAMAGE, Excess) as error:
            raise UnfitRow(f"damaged arrow: {short(error)}") from error
        yield from _batches(file, table, messages, names, options)


def _batches(
    file: InputFile, table: pa.RecordBatchReader, messages: _Messages, names: list[str], options: ReadOptions
) -> Iterator[Row]:
    done = 0
    while True:
        begun = done
        try:
            batch = table.read_next_batch()
            batch.validate(full=True)
            for row in batch_rows(file, batch.select(names), done + 1, options):
                done += 1
                yield row
        except StopIteration:
            return
        except (*DAMAGE, Excess) as error:
            kind = "arrow bomb" if isinstance(error, Excess) else "damaged arrow"
            lost = max(1, messages.rows - (done - begun))
            yield reject(file, done + 1, f"{kind}: {short(error)}", rows=lost)
            done += lost
            if not messages.whole or not messages.rows:
                return
