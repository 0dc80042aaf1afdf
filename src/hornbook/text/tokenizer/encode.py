"""One task of tokenize: a shard of documents to a shard of tokens for each split."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import IntegrityError
from hornbook.files.artifact import digest_file, digest_of, once
from hornbook.text.config.labels import LabelsConfig, has_answers, outputs_of
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.splits import PARTS, Part, Split
from hornbook.text.store import read_batches
from hornbook.text.tokenizer.bpe.dropout import Dropout
from hornbook.text.tokenizer.label_tokens import Labelled, label_tokens
from hornbook.text.tokenizer.shards import ShardInfo, ShardWriter, describe_shard, verify_shard, writing_shard
from hornbook.text.tokenizer.tokenizer import Tokenizer

VERSION = 1
"""Part of every key: raise it when the same documents shall give other shards."""

_BATCH_BYTES = 2**20
_COLUMNS = ("id", "text", "origin", "bytes")


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """A shard of documents and what to do with it."""

    data: Path
    source: str
    number: int
    documents: str
    """Path of the shard below `data`."""
    digest: str
    """What prepare wrote there."""
    tokenizer_digest: str
    dtype: str
    split: Split
    labels: LabelsConfig | None = None
    """Of labelled sets: what the documents' labels are."""
    dropout: Dropout | None = None
    """Of training documents: how often merges are left out."""

    @property
    def size(self) -> int:
        """Bytes of the shard on disk."""
        path = self.data / self.documents
        return path.stat().st_size if path.exists() else 0

    @property
    def manifest(self) -> Path:
        """Written last: the task is done."""
        return self.data / "work" / f"encoded-{self.source}-{self.number:05d}.json"

    def key(self) -> str:
        """Changes when the result would."""
        labels = [] if self.labels is None else [self.labels.model_dump()]
        dropout = [] if self.dropout is None else [self.dropout.to_json()]
        place = [self.source, self.number, self.digest]
        return digest_of([VERSION, *place, self.tokenizer_digest, self.dtype, *labels, *dropout, self.split.to_json()])

    def place(self, part: Part) -> tuple[str, str, int]:
        """Split, source and number of the shard of a part."""
        split, ending = PARTS[part]
        return split, self.source + ending, self.number

    def shard(self, part: Part) -> Path:
        """Where the tokens go, without ending."""
        split, source, number = self.place(part)
        return self.data / "tokens" / split / source / f"{number:05d}"


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a task made: at most one shard per part (none where the part has no documents)."""

    shards: list[ShardInfo]
    unknown: int
    """Tokens of text that the tokenizer cannot express."""


@lru_cache(maxsize=1)
def _load(path: Path, digest: str) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    if tokenizer.digest != digest:
        raise IntegrityError(f"{path} changed while it was used; run `hornbook tokenize` again")
    return tokenizer


def encode(task: EncodeTask) -> Encoded:
    """Write the token shards of the task unless they are there and whole."""
    done = once(task, lambda: _encode(task), lambda done: _intact(task, done["parts"]))
    return Encoded([describe_shard(task.data, *task.place(part)) for part in done["parts"]], done["unknown"])


def _intact(task: EncodeTask, parts: list[Part]) -> bool:
    try:
        for part in parts:
            verify_shard(task.shard(part))
    except IntegrityError:
        return False
    return True


def check_documents(path: Path, digest: str) -> None:
    """Raise IntegrityError unless the shard of documents holds what prepare wrote."""
    if not path.is_file() or digest_file(path) != digest:
        raise IntegrityError(f"{path} is not what prepare wrote; restore it, or prepare again with --overwrite")


def _encode(task: EncodeTask) -> dict[str, Any]:
    path = task.data / task.documents
    check_documents(path, task.digest)
    tokenizer = _load(task.data / "tokenizer", task.tokenizer_digest)
    unknown = 0
    with ExitStack() as stack:
        writers: dict[Part, ShardWriter] = {}
        for batch in _batches(path, [*_COLUMNS, *task.split.columns, *(["labels"] if task.labels is not None else [])]):
            parts: list[Part] = [task.split.part(row) for row in batch]
            for row, part, each in zip(batch, parts, _encoded(task, tokenizer, batch, parts), strict=True):
                if part not in writers:
                    writers[part] = stack.enter_context(_writing(task, part))
                writers[part].add(each.tokens, row["id"], row["origin"], row["bytes"], each.labels, each.facts)
                if tokenizer.unknown_id is not None:
                    unknown += int(np.count_nonzero(each.tokens == tokenizer.unknown_id))
    return {"parts": [part for part in PARTS if part in writers], "unknown": unknown}


def _writing(task: EncodeTask, part: Part) -> AbstractContextManager[ShardWriter]:
    outputs = 0 if task.labels is None else outputs_of(task.labels)
    answered = task.labels is not None and has_answers(task.labels)
    return writing_shard(task.shard(part), task.dtype, outputs, answered=answered)


def _encoded(
    task: EncodeTask, tokenizer: Tokenizer, rows: list[dict[str, Any]], parts: list[Part]
) -> Iterator[Labelled]:
    """The tokens of documents, with their labels if they have some."""
    if task.labels is None:
        texts = [row["text"] for row in rows]
        trains = [part == "train" for part in parts]
        draws = None if task.dropout is None else task.dropout.draws(task.source, texts, trains)
        yield from (Labelled(ids) for ids in tokenizer.encode_arrays(texts, draws))
        return
    for row in rows:
        yield label_tokens(tokenizer, task.labels, row["text"], Labelling.from_json(row["labels"]))


def _batches(path: Path, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
    """Rows of a document shard, about 1 MiB of text at a time."""
    batch: list[dict[str, Any]] = []
    filled = 0
    for rows in read_batches(path, columns):
        for row in rows.to_pylist():
            batch.append(row)
            filled += row["bytes"]
            if filled >= _BATCH_BYTES:
                yield batch
                batch, filled = [], 0
    if batch:
        yield batch
