"""Token shards on disk: what one is, how it is written, how it is checked (docs/architecture.md, "text").

A shard is `NAME.bin` (tokens), `NAME.idx` (END offset of each document), `NAME.docs.parquet` (who the documents are)
and `NAME.json` (counts and digests), which is written last. Of labelled sets there is also `NAME.labels`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
import xxhash
from jaxtyping import Float32

from hornbook.errors import IntegrityError
from hornbook.files.artifact import digest_file, write_json
from hornbook.files.durable import writing
from hornbook.files.file_records import FileRecord, Size, read_record
from hornbook.text.store import TableWriter
from hornbook.text.tokenizer.token_dtypes import DTYPES

BLOCK_BYTES = 1 << 20
"""Bytes of .bin per checksum."""

FILES = {"bin": ".bin", "idx": ".idx", "docs": ".docs.parquet"}
LABELS = ".labels"
"""float32, little endian: `outputs` numbers for each token, NaN where it has no label."""
_DOCUMENTS = pa.schema([("id", pa.string()), ("origin", pa.string()), ("bytes", pa.int64())])
ANSWERED = (("context", pa.large_string()), ("answers", pa.list_(pa.string())))
"""More columns of `.docs.parquet` where questions are answered: what the answer is in or is, and all right ones."""
_REMEDY = "restore the file, or write the shards again with `hornbook tokenize`"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as tokens/index.json lists it."""

    name: str
    """Path below the data folder without ending: tokens/SPLIT/SOURCE/00000."""
    split: str
    source: str
    tokens: int
    """Delimiters included."""
    documents: int
    bytes: int
    """UTF-8 bytes of the documents."""
    digest: str
    """xxh3_128 of .bin, as hex."""
    labels: str = ""
    """xxh3_128 of .labels, as hex; empty where there is none."""

    def to_json(self) -> dict[str, Any]:
        """As in the index."""
        return {name: value for name, value in asdict(self).items() if name != "labels" or value}


class ShardWriter:
    """Adds documents to a shard; memory holds one block of tokens and 8 bytes per document."""

    def __init__(
        self, path: Path, dtype: str, tokens: BinaryIO, documents: TableWriter, labels: BinaryIO | None = None
    ) -> None:
        self.path = path
        self._dtype = DTYPES[dtype]
        self._tokens, self._labels = tokens, labels
        self._documents = documents
        self._pending = bytearray()
        self._whole = xxhash.xxh3_128()
        self.blocks: list[str] = []
        self.ends: list[int] = []
        self.bytes = 0

    def add(
        self,
        ids: Sequence[int] | np.ndarray,
        name: str,
        origin: str,
        size: int,
        labels: Float32[np.ndarray, "tokens outputs"] | None = None,
        facts: tuple[Any, ...] = (),
    ) -> None:
        """Add a document: its tokens as stored, its id, its origin and the UTF-8 bytes of its text.

        `labels` and `facts` (the columns `ANSWERED`) are those of a labelled set.
        """
        tokens = np.asarray(ids, dtype=np.uint32)
        if self._labels is not None:
            assert labels is not None
            assert len(labels) == len(tokens)
            self._labels.write(labels.astype("<f4").tobytes())
        assert not len(tokens) or int(tokens.max()) <= np.iinfo(self._dtype).max
        self._pending += tokens.astype(self._dtype).tobytes()
        self.ends.append((self.ends[-1] if self.ends else 0) + len(ids))
        self._documents.add((name, origin, size, *facts), len(name) + len(origin) + size * len(facts))
        self.bytes += size
        while len(self._pending) >= BLOCK_BYTES:
            self._flush(BLOCK_BYTES)

    def finish(self) -> str:
        """Write the last block; gives the digest of .bin."""
        if self._pending:
            self._flush(len(self._pending))
        return self._whole.hexdigest()

    def _flush(self, size: int) -> None:
        block = bytes(self._pending[:size])
        del self._pending[:size]
        self._tokens.write(block)
        self._whole.update(block)
        self.blocks.append(xxhash.xxh3_64_hexdigest(block))


@contextmanager
def writing_shard(path: Path, dtype: str, outputs: int = 0, *, answered: bool = False) -> Iterator[ShardWriter]:
    """Write the shard `path` (without ending); its files appear when the block ends well, `.json` last.

    `outputs`: numbers that label each token, 0 for plain text. `answered`: documents have the columns `ANSWERED`.
    """
    schema = pa.schema([*_DOCUMENTS, *ANSWERED]) if answered else _DOCUMENTS
    with (
        writing(path.with_name(path.name + FILES["bin"])) as tokens,
        writing(path.with_name(path.name + FILES["docs"])) as docs,
        writing(path.with_name(path.name + LABELS)) if outputs else nullcontext() as labels,
    ):
        with TableWriter(docs, schema) as table:
            writer = ShardWriter(path, dtype, tokens, table, labels)
            yield writer
        digest = writer.finish()
    with writing(path.with_name(path.name + FILES["idx"])) as index:
        index.write(np.asarray(writer.ends, dtype="<u8").tobytes())
    digests = {"bin": digest}
    digests.update({name: digest_file(path.with_name(path.name + FILES[name])) for name in ("idx", "docs")})
    sidecar = {
        "tokens": writer.ends[-1] if writer.ends else 0,
        "documents": len(writer.ends),
        "bytes": writer.bytes,
        "dtype": dtype,
        "block_bytes": BLOCK_BYTES,
        "digests": digests,
        "blocks": writer.blocks,
    }
    if outputs:
        sidecar["outputs"], digests["labels"] = outputs, digest_file(path.with_name(path.name + LABELS))
    write_json(path.with_name(path.name + ".json"), sidecar)


class _Digests(FileRecord):
    bin: str
    idx: str
    docs: str
    labels: str = ""


class _Sidecar(FileRecord):
    """What the .json of a shard says."""

    tokens: Size
    documents: Size
    bytes: Size
    dtype: Literal["uint16", "uint32"]
    digests: _Digests
    blocks: list[str]
    outputs: Size = 0


def read_sidecar(path: Path) -> _Sidecar:
    """The .json of the shard `path` (without ending). Raises IntegrityError."""
    file = path.with_name(path.name + ".json")
    try:
        return read_record(file, _Sidecar, _REMEDY)
    except OSError as error:
        raise IntegrityError(f"{file}: cannot be read ({error.strerror}): {_REMEDY}") from error


def describe_shard(data: Path, split: str, source: str, number: int) -> ShardInfo:
    """The index entry of a shard that was written, from its sidecar."""
    name = f"tokens/{split}/{source}/{number:05d}"
    sidecar = read_sidecar(data / name)
    counts = (sidecar.tokens, sidecar.documents, sidecar.bytes)
    return ShardInfo(name, split, source, *counts, sidecar.digests.bin, sidecar.digests.labels)


def verify_shard(path: Path) -> None:
    """Compare the files of the shard `path` (without ending) with its sidecar.

    Raises IntegrityError naming the file, and for .bin the first damaged block.
    """
    sidecar = read_sidecar(path)
    endings = FILES | ({"labels": LABELS} if sidecar.outputs else {})
    files = {name: path.with_name(path.name + ending) for name, ending in endings.items()}
    sizes = {
        "bin": sidecar.tokens * DTYPES[sidecar.dtype].itemsize,
        "idx": 8 * sidecar.documents,
        "labels": 4 * sidecar.tokens * sidecar.outputs,
    }
    for name, file in files.items():
        if not file.is_file():
            raise IntegrityError(f"{file}: missing: {_REMEDY}")
        if name in sizes and file.stat().st_size != sizes[name]:
            raise IntegrityError(f"{file}: expected {sizes[name]} bytes, found {file.stat().st_size}: {_REMEDY}")
    _verify_blocks(files["bin"], sidecar.blocks)
    for name, file in files.items():
        if digest_file(file) != getattr(sidecar.digests, name):
            raise IntegrityError(f"{file}: its digest is not the one in {path}.json: {_REMEDY}")


def _verify_blocks(path: Path, blocks: list[str]) -> None:
    with path.open("rb") as file:
        for number, expected in enumerate(blocks):
            if xxhash.xxh3_64_hexdigest(file.read(BLOCK_BYTES)) != expected:
                raise IntegrityError(f"{path}: block {number} (of {BLOCK_BYTES} bytes) is damaged: {_REMEDY}")
