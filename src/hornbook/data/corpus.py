"""Token shards on disk, opened by memory map: tokens/index.json and the streams it lists.

A shard is three files (docs/architecture.md): the tokens, the END offset of each document, and who the
documents are. The shards of one source in one split form a `Stream`, a line of tokens addressed by one offset.
"""

import contextlib
import errno
import json
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xxhash
from pydantic import TypeAdapter

from hornbook.errors import HornbookError, IntegrityError, UsageError
from hornbook.text.config_labels import LabelsConfig, outputs_of
from hornbook.text.shards import DTYPES, LABELS, verify_shard

_labels: TypeAdapter[LabelsConfig] = TypeAdapter(LabelsConfig)
_REMEDY = "restore the file, or write the shards again with `hornbook tokenize`"


@dataclass(frozen=True)
class Shard:
    """One shard of one source, mapped."""

    name: str
    """Path below the data folder without ending: tokens/SPLIT/SOURCE/00000."""
    root: Path
    tokens: int
    documents: int
    bytes: int
    digest: str
    """What the index says the .bin holds."""
    data: np.ndarray
    """Token ids, uint16 or uint32 [tokens], read-only map."""
    ends: np.ndarray
    """END offset of each document in tokens, uint64 [documents], read-only map."""
    labels: np.ndarray | None = None
    """Of a labelled set: float32 [tokens, outputs], NaN where a token has no label, read-only map."""
    labels_digest: str = ""
    """What the index says the .labels holds."""

    def path(self, ending: str) -> Path:
        """One of the shard's files: `.bin`, `.idx`, `.docs.parquet`, `.json`."""
        return self.root / (self.name + ending)

    def document(self, number: int) -> dict[str, Any]:
        """Columns of `.docs.parquet` for document `number`: id, origin, bytes."""
        table = _documents(self.path(".docs.parquet"))
        if len(table) != self.documents or not {"id", "origin", "bytes"} <= set(table.column_names):
            raise IntegrityError(
                f"{self.path('.docs.parquet')}: expected id, origin and bytes of {self.documents} documents, found"
                f" {len(table)} rows of {', '.join(table.column_names)}: {_REMEDY}"
            )
        return table.slice(number, 1).to_pylist()[0]


@lru_cache(maxsize=4)
def _documents(path: Path) -> Any:
    try:
        return pq.read_table(path)
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: cannot be read as parquet ({error}): {_REMEDY}") from error


@dataclass(frozen=True)
class Stream:
    """The shards of one source in one split, in order, addressed as one line of tokens."""

    source: str
    shards: tuple[Shard, ...]

    @cached_property
    def starts(self) -> np.ndarray:
        """Offset of each shard in the stream and, last, its length: int64 [shards + 1]."""
        return np.cumsum([0] + [shard.tokens for shard in self.shards], dtype=np.int64)

    @property
    def tokens(self) -> int:
        """Length of the stream in tokens."""
        return int(self.starts[-1])

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(shard.documents for shard in self.shards)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the documents."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def digest(self) -> str:
        """Hash of the names and contents of the shards, as the index states them."""
        text = "\n".join(
            f"{shard.name} {shard.tokens} {shard.digest}{' ' * bool(shard.labels_digest)}{shard.labels_digest}"
            for shard in self.shards
        )
        return xxhash.xxh3_128_hexdigest(text.encode())


class Corpus:
    """All token shards of a data folder."""

    def __init__(self, root: Path, index: dict[str, Any], streams: dict[str, dict[str, Stream]]) -> None:
        self.root = root
        self.index = index
        self.train = streams["train"]
        """Training stream of each source."""
        self.validation = streams["validation"]
        """Validation stream of each source."""
        self.delimiter_id = int(index["delimiter_id"])
        self.end_id = int(index["end_id"])
        self.vocab_size = int(index["vocab_size"])
        self.wide = index["dtype"] == "uint32"
        """Token ids take four bytes, not two."""
        self.tokenizer_digest = str(index["tokenizer_digest"])
        self.labels: LabelsConfig | None = _labels_of(index)
        """What the labels of a labelled set are; None for plain text."""

    @staticmethod
    def open(path: Path | str) -> "Corpus":
        """Map the shards of the data folder `path` (or of its `tokens` folder).

        Reads no tokens: sizes are compared with the index, contents only by `verify`.

        Raises:
            UsageError: there are no token shards at `path`.
            IntegrityError: a shard is missing, truncated or not the one the index describes.
        """
        root = Path(path)
        if root.name == "tokens" and not (root / "tokens").exists():
            root = root.parent
        index = _read_index(root)
        _allow_open_files(2 * len(index["shards"]))
        streams: dict[str, dict[str, list[Shard]]] = {"train": {}, "validation": {}}
        try:
            for entry in index["shards"]:
                split = streams[entry["split"]]
                outputs = 0 if (labels := _labels_of(index)) is None else outputs_of(labels)
                split.setdefault(entry["source"], []).append(_open_shard(root, entry, index["dtype"], outputs))
        except HornbookError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(
                f"{root / 'tokens' / 'index.json'} lists a shard wrongly ({error}): {_REMEDY}"
            ) from error
        return Corpus(
            root,
            index,
            {
                split: {source: Stream(source, tuple(shards)) for source, shards in by_source.items()}
                for split, by_source in streams.items()
            },
        )

    @property
    def streams(self) -> Iterator[Stream]:
        """Training streams, then validation streams."""
        yield from self.train.values()
        yield from self.validation.values()

    @cached_property
    def fingerprint(self) -> str:
        """Hash of what all shards hold, as the index states it."""
        text = "\n".join([self.tokenizer_digest, *(stream.digest for stream in self.streams)])
        return xxhash.xxh3_128_hexdigest(text.encode())

    def lock(self) -> dict[str, Any]:
        """What a run writes to data.lock: digests of the tokenizer and of each shard."""
        shards = {shard.name: shard.digest for stream in self.streams for shard in stream.shards}
        return {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer_digest, "shards": shards}

    def verify(self, progress: Callable[[str], None] | None = None) -> None:
        """Read every shard whole and compare it with its checksums and with the index.

        Args:
            progress: called with the name of each shard that is as it should be.

        Raises:
            IntegrityError: names the first damaged file and, in a .bin, the first damaged block of 1 MiB.
        """
        for stream in self.streams:
            for shard in stream.shards:
                verify_shard(shard.root / shard.name)
                stated = json.loads(shard.path(".json").read_text(encoding="utf-8"))["digests"]["bin"]
                if stated != shard.digest:
                    raise IntegrityError(
                        f"{shard.path('.bin')}: the index expects digest {shard.digest}, found {stated}: {_REMEDY}"
                    )
                if np.any(shard.ends[1:] < shard.ends[:-1]):
                    raise IntegrityError(f"{shard.path('.idx')}: document ends do not ascend: {_REMEDY}")
                if progress is not None:
                    progress(shard.name)


def _read_index(root: Path) -> dict[str, Any]:
    path = root / "tokens" / "index.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if not root.exists():
            raise UsageError(f"{root} does not exist: name a folder written by `hornbook tokenize`") from error
        raise UsageError(f"{root} has no token shards ({path} is missing): run `hornbook tokenize {root}`") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    try:
        index = json.loads(text)
        needed = ("shards", "dtype", "delimiter_id", "end_id", "vocab_size", "tokenizer_digest")
        missing = [key for key in needed if key not in index]
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"{path} is damaged ({error}): {_REMEDY}") from error
    if missing or index["dtype"] not in DTYPES:
        raise IntegrityError(f"{path} is not an index of token shards (lacks {', '.join(missing)}): {_REMEDY}")
    return index


def _labels_of(index: dict[str, Any]) -> LabelsConfig | None:
    return _labels.validate_python(index["labels"]) if "labels" in index else None


def _allow_open_files(count: int) -> None:
    """Raise this process's own limit of open files where `count` maps more need it: each map holds its file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256  # sockets, libraries, a run's own files
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _open_shard(root: Path, entry: dict[str, Any], dtype: str, outputs: int) -> Shard:
    name, tokens, documents = entry["name"], int(entry["tokens"]), int(entry["documents"])
    data = _map(root / f"{name}.bin", DTYPES[dtype], tokens)
    ends = _map(root / f"{name}.idx", np.dtype("<u8"), documents)
    last = int(ends[-1]) if documents else 0
    if last != tokens:
        raise IntegrityError(f"{root / name}.idx: the last document ends at {last}, expected {tokens}: {_REMEDY}")
    if not (root / f"{name}.docs.parquet").is_file():
        raise IntegrityError(f"{root / name}.docs.parquet: expected a file, found none: {_REMEDY}")
    shard = Shard(name, root, tokens, documents, int(entry["bytes"]), str(entry["digest"]), data, ends)
    if not outputs:
        return shard
    labels = _map(root / f"{name}{LABELS}", np.dtype("<f4"), tokens * outputs).reshape(tokens, outputs)
    return replace(shard, labels=labels, labels_digest=str(entry["labels"]))


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """Map a file of exactly `count` numbers read-only."""
    expected = count * dtype.itemsize
    try:
        found = path.stat().st_size
        if found != expected:
            raise IntegrityError(f"{path}: expected {expected} bytes, found {found}: {_REMEDY}")
        if count == 0:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(path, dtype, mode="r"))
    except FileNotFoundError as error:
        raise IntegrityError(f"{path}: expected {expected} bytes, found no file: {_REMEDY}") from error
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise UsageError(
                f"{path}: too many open files: raise the limit (`ulimit -n`), or use larger shards"
            ) from error
        raise IntegrityError(
            f"{path}: cannot be opened ({error.strerror}): check its permissions, or {_REMEDY}"
        ) from error
