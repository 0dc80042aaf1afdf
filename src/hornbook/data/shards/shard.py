"""One shard on disk, opened by memory map; everything read from it is compared with its checksums first.

Token ids are compared by blocks of 1 MiB, when a block is first touched; document ends, labels and the list of
documents as a whole, when they are first read. So data that was damaged after it was written never trains a model, and
a start reads no more than it needs. A process compares each block or file once.
"""

import ctypes
import errno
import json
import os
import signal
import weakref
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hornbook.errors import DoesNotFitError, Exit, IntegrityError, UsageError
from hornbook.files.artifact import digest_file
from hornbook.files.filesystem import is_file
from hornbook.text.tokenizer.shards import BLOCK_BYTES, LABELS
from hornbook.text.tokenizer.token_dtypes import DTYPES

REMEDY = "restore the file, or write the shards again with `hornbook tokenize`"
_EXAMPLES = 3
_MOST_NAMED = 3


class TokenShard:
    """One shard of one source, mapped."""

    def __init__(self, root: Path, entry: dict[str, Any], dtype: str, outputs: int) -> None:
        """`entry`: of tokens/index.json; `outputs`: labels of each token, 0 for plain text.

        Raises IntegrityError where a file is missing or has another size than the index says.
        """
        self.root = root
        self.name: str = entry["name"]
        """Path below the data folder without ending: tokens/SPLIT/SOURCE/00000."""
        self.tokens, self.documents, self.bytes = int(entry["tokens"]), int(entry["documents"]), int(entry["bytes"])
        self.digest = str(entry["digest"])
        """Digest of the .bin, as the index states it."""
        self.labels_digest = str(entry["labels"]) if outputs else ""
        """Digest of the .labels, as the index states it."""
        self.outputs = outputs
        self.mapped = _map(self.path(".bin"), DTYPES[dtype], self.tokens)
        """Token ids, uint16 or uint32 [tokens], read-only, not compared with anything: see `data`."""
        self.mapped_ends = _map(self.path(".idx"), np.dtype("<u8"), self.documents)
        """END offsets, uint64 [documents], not compared with anything: see `ends`."""
        self._labels = _map(self.path(LABELS), np.dtype("<f4"), self.tokens * outputs) if outputs else None
        last = int(self.mapped_ends[-1]) if self.documents else 0
        if last != self.tokens:
            raise IntegrityError(
                f"{self.path('.idx')}: the last document ends at {last}, expected {self.tokens}: {self.remedy}"
            )
        if not is_file(self.path(".docs.parquet")):
            raise IntegrityError(f"{self.path('.docs.parquet')}: expected a file, found none: {self.remedy}")
        self.sound = np.zeros(-(-self.mapped.nbytes // BLOCK_BYTES), np.uint8)
        """1 for each block of .bin whose checksum was found right; kernels read it (`ShardTable`)."""
        self._sound_files: set[str] = set()
        self._stated: dict[str, Any] | None = None

    def path(self, ending: str) -> Path:
        """One of the shard's files: `.bin`, `.idx`, `.labels`, `.docs.parquet`, `.json`."""
        return self.root / (self.name + ending)

    @property
    def remedy(self) -> str:
        """How to mend a damaged file of this shard, for errors."""
        if self.root.parent.name == "plans":  # made from other shards (`hornbook.data.objectives.fim`)
            return f"delete {self.root}: it is made again"
        return REMEDY

    @property
    def data(self) -> np.ndarray:
        """All token ids, uint16 or uint32 [tokens]. IntegrityError naming the first damaged block."""
        for block in np.flatnonzero(self.sound == 0).tolist():
            self.check_block(block)
        return self.mapped

    @property
    def ends(self) -> np.ndarray:
        """END offset of each document in tokens, uint64 [documents]. IntegrityError where the file is damaged."""
        self._check_file("idx", ".idx", self.mapped_ends)
        return self.mapped_ends

    @property
    def labels(self) -> np.ndarray | None:
        """Of a labelled set: float32 [tokens, outputs], NaN where a token has no label. IntegrityError if damaged."""
        if self._labels is None:
            return None
        self._check_file("labels", LABELS, self._labels)
        return self._labels.reshape(self.tokens, self.outputs)

    def table(self) -> pa.Table:
        """`.docs.parquet`: id, origin, bytes of each document. IntegrityError where it is damaged."""
        path = self.path(".docs.parquet")
        self._check_file("docs", ".docs.parquet", None)
        table = _read_table(path, self._checksums()["digests"]["docs"])
        if len(table) != self.documents or not {"id", "origin", "bytes"} <= set(table.column_names):
            raise IntegrityError(
                f"{path}: expected id, origin and bytes of {self.documents} documents, found"
                f" {len(table)} rows of {', '.join(table.column_names)}: {self.remedy}"
            )
        return table

    def document(self, number: int) -> dict[str, Any]:
        """Columns of `.docs.parquet` for document `number`: id, origin, bytes."""
        return self.table().slice(number, 1).to_pylist()[0]

    def check_block(self, block: int) -> None:
        """Compare one block of token ids, and the document ends, with their checksums.

        IntegrityError naming shard, block and documents.
        """
        self.check_sizes()
        self._check_file("idx", ".idx", self.mapped_ends)
        stated = self._checksums()["blocks"]
        first = block * BLOCK_BYTES // self.mapped.itemsize
        end = min(first + BLOCK_BYTES // self.mapped.itemsize, self.tokens)
        if block >= len(stated) or xxhash.xxh3_64_hexdigest(self.mapped[first:end].data) != stated[block]:
            raise IntegrityError(
                f"{self.path('.bin')}: block {block} (tokens {first:,} to {end - 1:,}) is damaged, and with it"
                f" {self._name_documents(first, end)}: {self.remedy}"
            )
        self.sound[block] = 1

    def check_sizes(self) -> None:
        """IntegrityError where a mapped file has become shorter: reading on would kill the process (SIGBUS)."""
        maps = {".bin": self.mapped, ".idx": self.mapped_ends} | (
            {} if self._labels is None else {LABELS: self._labels}
        )
        for ending, mapped in maps.items():
            _check_size(self.path(ending), mapped.nbytes, self.remedy)

    def _check_file(self, name: str, ending: str, mapped: np.ndarray | None) -> None:
        """Compare a whole file with its digest, once."""
        if name in self._sound_files:
            return
        path = self.path(ending)
        if mapped is not None:
            _check_size(path, mapped.nbytes, self.remedy)
        try:
            found = digest_file(path) if mapped is None else xxhash.xxh3_128_hexdigest(mapped.data)
        except OSError as error:
            raise IntegrityError(f"{path}: cannot be read ({error.strerror}): {self.remedy}") from error
        if found != self._checksums()["digests"].get(name):
            raise IntegrityError(f"{path} is damaged (its digest is not the one in {self.name}.json): {self.remedy}")
        self._sound_files.add(name)

    def _checksums(self) -> dict[str, Any]:
        """`.json` beside the shard, which belongs to what the index lists."""
        if self._stated is not None:
            return self._stated
        path = self.path(".json")
        try:
            stated: dict[str, Any] = json.loads(path.read_bytes())
            digests, blocks = stated["digests"], stated["blocks"]
            found = digests["bin"], digests.get("labels", "")
            if not isinstance(blocks, list):
                raise TypeError("blocks is no list")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise IntegrityError(f"{path}: the shard's checksums cannot be read ({error}): {self.remedy}") from error
        if found != (self.digest, self.labels_digest):
            what = self.path(".bin") if found[0] != self.digest else self.path(LABELS)
            raise IntegrityError(f"{what}: {path.name} is not of the shard that the index lists: {self.remedy}")
        self._stated = stated
        return stated

    def _name_documents(self, first: int, end: int) -> str:
        """The documents that have tokens in [first, end)."""
        low = int(np.searchsorted(self.mapped_ends, np.uint64(first), side="right"))
        high = min(int(np.searchsorted(self.mapped_ends, np.uint64(end - 1), side="right")), self.documents - 1)
        try:
            ids = [repr(name) for name in self.table()["id"].slice(low, _EXAMPLES).to_pylist()]
        except IntegrityError:
            ids = []
        ids = ids[: high - low + 1]
        named = f" ({', '.join(ids)}{', ...' if high - low + 1 > len(ids) else ''})" if ids else ""
        return f"document {low}{named}" if low == high else f"documents {low} to {high}{named}"


def _check_size(path: Path, expected: int, remedy: str) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError as error:
        raise IntegrityError(f"{path}: expected {expected} bytes, found no file: {remedy}") from error
    except OSError as error:
        raise _map_error(path, error) from error
    if found != expected:
        raise IntegrityError(f"{path}: expected {expected} bytes, found {found}: {remedy}")


@lru_cache(maxsize=4)
def _read_table(path: Path, digest: str) -> pa.Table:
    """The table in a file of this digest."""
    del digest
    try:
        return pq.read_table(path)
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: cannot be read as parquet ({error}): {REMEDY}") from error


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """Map a file of exactly `count` numbers read-only."""
    _check_size(path, count * dtype.itemsize, REMEDY)
    if count == 0:
        return np.empty(0, dtype)
    try:
        return np.asarray(np.memmap(path, dtype, mode="r"))
    except OSError as error:
        raise _map_error(path, error) from error


def _map_error(path: Path, error: OSError) -> Exception:
    if error.errno == errno.EMFILE:
        return UsageError(f"{path}: too many open files: raise the limit (`ulimit -n`), or use larger shards")
    if error.errno == errno.ENOMEM:
        return DoesNotFitError(
            f"{path}: no address space is left to map it: raise the limit (`ulimit -v`, vm.max_map_count), or use"
            " larger shards"
        )
    return IntegrityError(f"{path}: cannot be opened ({error.strerror}): check its permissions, or {REMEDY}")


_watched: "weakref.WeakSet[TokenShard]" = weakref.WeakSet()
_installed: list[object] = []


def truncated(shards: Iterable[TokenShard]) -> IntegrityError | None:
    """The error that names the shards whose files are shorter than what was mapped of them, if there are any."""
    problems = []
    for shard in shards:
        try:
            shard.check_sizes()
        except IntegrityError as error:
            problems.append(str(error))
    if not problems:
        return None
    more = f"\nand {len(problems) - _MOST_NAMED} more shards" if len(problems) > _MOST_NAMED else ""
    return IntegrityError("a file was changed while it was read:\n" + "\n".join(problems[:_MOST_NAMED]) + more)


def watch(shards: Iterable[TokenShard]) -> None:
    """Have this process end with exit code 3 and a message, not by SIGBUS, when one of the shards is truncated.

    Without it the system ends whoever reads a page that is gone, without a word. The handler runs in the thread that
    touched the page, so it may only look at the sizes of files and leave.
    """
    _watched.update(shards)
    if _installed:
        return
    library = ctypes.CDLL(None)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)

    @kind
    def tell(number: int) -> None:
        if (error := truncated(list(_watched))) is not None:
            os.write(2, f"error {error}\n".encode(errors="backslashreplace"))
            os._exit(Exit.INTEGRITY)
        library.signal(number, previous)  # something else: touched again, the page ends the process as before

    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    previous = library.signal(signal.SIGBUS, ctypes.cast(tell, ctypes.c_void_p))
    _installed.append(tell)
