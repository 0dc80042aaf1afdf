"""One task of tokenize: a shard of documents to a shard of tokens for each split."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.artifact import digest_file, digest_of, once
from hornbook.text.config.labels import Dialogue, LabelsConfig, has_answers, outputs_of
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.splits import SUBSETS, Split, Subset
from hornbook.text.store import batched, read_rows
from hornbook.text.tokenizer.bpe.tables import Dropout
from hornbook.text.tokenizer.chat_template import ChatTemplate
from hornbook.text.tokenizer.dialogues import dialogue_tokens
from hornbook.text.tokenizer.label_tokens import LabelledTokens, label_tokens
from hornbook.text.tokenizer.shards import ShardInfo, ShardWriter, describe_shard, verify_shard, writing_shard
from hornbook.text.tokenizer.special_tokens import read_settings
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
    template: str = ""
    """Of conversations: the chat template."""

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
        dropout = [] if self.dropout is None else [asdict(self.dropout)]
        documents = [self.source, self.number, self.digest]
        more = [*labels, *dropout, *filter(None, [self.template])]
        return digest_of([VERSION, *documents, self.tokenizer_digest, self.dtype, *more, self.split.to_json()])

    def destination(self, subset: Subset) -> tuple[str, str, int]:
        """Split, source and number of the shard of a subset."""
        split, ending = SUBSETS[subset]
        return split, self.source + ending, self.number

    def shard(self, subset: Subset) -> Path:
        """Where the tokens go, without ending."""
        split, source, number = self.destination(subset)
        return self.data / "tokens" / split / source / f"{number:05d}"


@lru_cache(maxsize=1)
def _load(path: Path, digest: str) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    if tokenizer.digest != digest:
        raise IntegrityError(f"{path} changed while it was used; run `hornbook tokenize` again")
    return tokenizer


def encode(task: EncodeTask) -> tuple[list[ShardInfo], int]:
    """Write the token shards of the task unless they are there and whole.

    Returns (at most one shard per subset, none of those without documents; tokens of text that the tokenizer cannot
    express).
    """
    done = once(task, lambda: _encode(task), lambda done: _intact(task, done["parts"]))
    return [describe_shard(task.data, *task.destination(subset)) for subset in done["parts"]], done["unknown"]


def _intact(task: EncodeTask, subsets: list[Subset]) -> bool:
    try:
        for subset in subsets:
            verify_shard(task.shard(subset))
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
    outputs = 0 if task.labels is None else outputs_of(task.labels)
    answered, unknown = task.labels is not None and has_answers(task.labels), 0
    with ExitStack() as stack:
        writers: dict[Subset, ShardWriter] = {}
        columns = [*_COLUMNS, *task.split.columns, *(["labels"] if task.labels is not None else [])]
        for batch in batched(read_rows(path, columns), lambda row: row["bytes"], _BATCH_BYTES):
            subsets: list[Subset] = [task.split.subset(row) for row in batch]
            for row, subset, each in zip(batch, subsets, _encoded(task, tokenizer, batch, subsets), strict=True):
                if subset not in writers:
                    shard = writing_shard(task.shard(subset), task.dtype, outputs, answered=answered)
                    writers[subset] = stack.enter_context(shard)
                writers[subset].add(each.tokens, row["id"], row["origin"], row["bytes"], each.labels, each.facts)
                if tokenizer.unknown_id is not None:
                    unknown += int(np.count_nonzero(np.asarray(each.tokens) == tokenizer.unknown_id))
    return {"parts": [subset for subset in SUBSETS if subset in writers], "unknown": unknown}


def _encoded(
    task: EncodeTask, tokenizer: Tokenizer, rows: list[dict[str, Any]], subsets: list[Subset]
) -> Iterator[LabelledTokens]:
    """The tokens of documents, with their labels if they have some."""
    if task.labels is None:
        texts = [row["text"] for row in rows]
        trains = [subset == "train" for subset in subsets]
        draws = None if task.dropout is None else task.dropout.draws(task.source, texts, trains)
        yield from (LabelledTokens(ids) for ids in tokenizer.encode_arrays(texts, draws))
        return
    if isinstance(task.labels, Dialogue):
        template = ChatTemplate(task.template, tokenizer, read_settings(task.data / "tokenizer"))
        for row in rows:
            try:
                yield dialogue_tokens(template, task.labels, row["text"], Labelling.from_json(row["labels"]))
            except UsageError as error:
                raise UsageError(f"{row['origin']}: {error}") from error
        return
    for row in rows:
        yield label_tokens(tokenizer, task.labels, row["text"], Labelling.from_json(row["labels"]))
