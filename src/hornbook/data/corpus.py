"""Token shards on disk, opened by memory map: tokens/index.json and the streams it lists.

A shard is three files (docs/architecture.md): the tokens, the END offset of each document, and who the
documents are. The shards of one source in one split form a `Stream`, a line of tokens addressed by one offset.
"""

import contextlib
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pydantic import Field, TypeAdapter, ValidationError

from hornbook.data.config.data import DataConfig
from hornbook.data.shards.shard import REMEDY, TokenShard, watch
from hornbook.errors import HornbookError, IntegrityError, UsageError, quoted
from hornbook.files.file_records import FileRecord, Size, first_problem, read_record
from hornbook.text.config.labels import LabelsConfig, outputs_of
from hornbook.text.tokenizer.shards import read_sidecar, verify_shard

_labels: TypeAdapter[LabelsConfig] = TypeAdapter(LabelsConfig)


REPLAY = "replay-"
"""What names of sources of an earlier training begin with."""


class _DataLock(FileRecord):
    """The part of data.lock that is checked."""

    tokenizer: str
    shards: dict[str, str]
    """Name of a shard -> digest."""


@dataclass(frozen=True)
class Stream:
    """The shards of one source in one split, in order, addressed as one line of tokens."""

    source: str
    shards: tuple[TokenShard, ...]

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


class _Entry(FileRecord):
    """A shard as the index lists it."""

    name: str
    split: Literal["train", "validation"]
    source: str
    tokens: Size
    documents: Size
    bytes: Size
    digest: str
    labels: str = ""


class _Index(FileRecord):
    """tokens/index.json."""

    shards: list[_Entry]
    dtype: Literal["uint16", "uint32"]
    delimiter_id: Size
    end_id: Size
    vocab_size: Annotated[int, Field(gt=0, le=2**32)]
    tokenizer_digest: str


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
        """Token ids are uint32, else uint16."""
        self.tokenizer_digest = str(index["tokenizer_digest"])
        self.replayed: frozenset[str] = frozenset()
        """Sources of an earlier training (`data.replay`); they lie in another folder."""
        self.measured: dict[str, str] = {}
        """Digests of measurements of documents that the order of samples depends on (`data.curriculum`), by name."""
        self.labels: LabelsConfig | None = _labels_of(root, index)
        """The kind of labels of a labelled set; None for plain text."""

    @staticmethod
    def open(path: Path | str) -> "Corpus":
        """Map the shards of the data folder `path` (or of its `tokens` folder).

        Reads no tokens: sizes are compared with the index here, contents when they are first read (`shards/shard.py`).
        Raises UsageError where there are no token shards, IntegrityError where one is not as the index describes it.
        """
        root = Path(path)
        if root.name == "tokens" and not (root / "tokens").exists():
            root = root.parent
        index = _read_index(root)
        _allow_open_files(2 * len(index["shards"]))
        outputs = 0 if (labels := _labels_of(root, index)) is None else outputs_of(labels)
        shards: dict[str, dict[str, list[TokenShard]]] = {"train": {}, "validation": {}}
        try:
            for entry in index["shards"]:
                shard = TokenShard(root, entry, index["dtype"], outputs)
                shards[entry["split"]].setdefault(entry["source"], []).append(shard)
        except HornbookError:
            raise
        except (KeyError, ValueError) as error:
            where = root / "tokens" / "index.json"
            raise IntegrityError(f"{where} lists a shard wrongly ({error}): {REMEDY}") from error
        streams = {
            split: {source: Stream(source, tuple(some)) for source, some in by_source.items()}
            for split, by_source in shards.items()
        }
        corpus = Corpus(root, index, streams)
        watch(corpus.shards)
        return corpus

    @property
    def streams(self) -> Iterator[Stream]:
        """Training streams, then validation streams."""
        yield from self.train.values()
        yield from self.validation.values()

    @property
    def shards(self) -> Iterator[TokenShard]:
        """All shards."""
        return (shard for stream in self.streams for shard in stream.shards)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents of all shards, as the index states them."""
        text = "\n".join([self.tokenizer_digest, *(stream.digest for stream in self.streams)])
        return xxhash.xxh3_128_hexdigest(text.encode())

    def lock(self) -> dict[str, Any]:
        """The contents of a run's data.lock: digests of the tokenizer, of each shard, and of what orders samples."""
        replayed = ((REPLAY if stream.source in self.replayed else "", stream) for stream in self.streams)
        shards = {mark + shard.name: shard.digest for mark, stream in replayed for shard in stream.shards}
        return {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer_digest, "shards": shards | self.measured}

    def with_replay(self, old: "Corpus") -> "Corpus":
        """This text and that of an earlier training. UsageError where their tokens are not those of one tokenizer."""
        if old.tokenizer_digest != self.tokenizer_digest:
            tokenizer = quoted(self.root / "tokenizer" / "tokenizer.json")
            raise UsageError(
                f"data.replay.path: {old.root} has tokens of another tokenizer than {self.root}: make them anew with "
                f"`hornbook tokenize {quoted(old.root)} --tokenizer {tokenizer}`"
            )
        if self.labels is not None or old.labels is not None:
            raise UsageError("data.replay.path: labelled sets are not replayed: leave it out")
        streams = {"train": dict(self.train), "validation": dict(self.validation)}
        for split, others in (("train", old.train), ("validation", old.validation)):
            for name, stream in others.items():
                if (new := REPLAY + name) in self.train or new in self.validation:
                    raise UsageError(f"data.replay.path: {self.root} has a source {new!r}: give it another name")
                streams[split][new] = Stream(new, stream.shards)
        both = Corpus(self.root, self.index, streams)
        both.replayed = frozenset(REPLAY + name for name in (*old.train, *old.validation))
        return both

    def verify(self, progress: Callable[[str], None] | None = None) -> None:
        """Read every shard whole and compare it with its checksums and with the index.

        `progress` is called with the name of each sound shard. IntegrityError names the first damaged file and, in a
        .bin, the first damaged block of 1 MiB.
        """
        for shard in self.shards:
            verify_shard(shard.root / shard.name)
            stated = read_sidecar(shard.root / shard.name).digests.bin
            if stated != shard.digest:
                raise IntegrityError(
                    f"{shard.path('.bin')}: the index expects digest {shard.digest}, found {stated}: {REMEDY}"
                )
            if np.any(shard.ends[1:] < shard.ends[:-1]):
                raise IntegrityError(f"{shard.path('.idx')}: document ends do not ascend: {REMEDY}")
            if progress is not None:
                progress(shard.name)


def check_data_lock(path: Path, current: Mapping[str, Any]) -> None:
    """Raise IntegrityError if the data is not what `data.lock` recorded at the start of the run."""
    try:
        locked = read_record(path, _DataLock, "restore the file, or `hornbook fork` a new run")
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error}") from error
    problems = []
    if locked.tokenizer != current["tokenizer"]:
        problems.append("the tokenizer")
    before, after = locked.shards, current["shards"]
    problems += [f"shard {name} is gone" for name in before if name not in after]
    problems += [f"shard {name} is new" for name in after if name not in before]
    problems += [f"shard {name}" for name in before if name in after and before[name] != after[name]]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise IntegrityError(
            f"the data is not what this run began with ({', '.join(problems[:3])}{more}): restore it, or "
            "`hornbook fork` a new run onto the new data"
        )


def open_corpus(config: DataConfig, path: Path | str) -> Corpus:
    """The text of a folder, with that which the settings replay. Errors: as `Corpus.open` and `with_replay`."""
    corpus = Corpus.open(path)
    corpus = corpus if config.replay.path is None else corpus.with_replay(Corpus.open(config.replay.path))
    if config.curriculum.kind != "none":
        corpus.measured = _column_digests(corpus.root / "signals", config.curriculum.by)
    return corpus


def _column_digests(folder: Path, column: str) -> dict[str, str]:
    """Digest of a column of numbers in each file of the signals of `prepare`. IntegrityError for a damaged file."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            kind = dict(zip((schema := pq.read_schema(path)).names, schema.types, strict=True)).get(column)
            if kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                values = pq.read_table(path, columns=[column])[column].cast(pa.float64()).to_numpy()
                found[f"signals/{path.name} {column}"] = xxhash.xxh3_128_hexdigest(values.data)
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"{path} cannot be read ({error}): prepare the text again") from error
    return found


def _read_index(root: Path) -> dict[str, Any]:
    path = root / "tokens" / "index.json"
    try:
        index = read_record(path, _Index, REMEDY)
    except FileNotFoundError as error:
        if not root.exists():
            raise UsageError(f"{root} does not exist: name a folder written by `hornbook tokenize`") from error
        raise UsageError(
            f"{root} has no token shards ({path} is missing): run `hornbook tokenize {quoted(root)}`"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    if max(index.delimiter_id, index.end_id) >= index.vocab_size:
        raise IntegrityError(f"{path} is damaged (delimiter_id or end_id is not below vocab_size): {REMEDY}")
    return index.model_dump(exclude_unset=True)


def _labels_of(root: Path, index: dict[str, Any]) -> LabelsConfig | None:
    try:
        return _labels.validate_python(index["labels"]) if "labels" in index else None
    except ValidationError as error:
        where = root / "tokens" / "index.json"
        raise IntegrityError(f"{where} is damaged ({first_problem(error)}): {REMEDY}") from error


def _allow_open_files(count: int) -> None:
    """Raise this process's own limit of open files where `count` maps more need it: each map holds its file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256  # sockets, libraries, a run's own files
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
