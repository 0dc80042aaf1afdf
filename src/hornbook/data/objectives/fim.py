"""Fill in the middle: training documents rearranged before they are packed (Bavarian et al. 2022, arXiv 2207.14255).

A document is cut at two uniform characters into prefix, middle and suffix, and stored as either

    [prefix] p [suffix] s [middle] m        or        [prefix] [suffix] s [middle] p m

with each part encoded alone. The choice of documents, their form and the cuts follow from (seed, shard, number of the
document), not from the epoch. Characters are not visible in tokens, so documents are decoded, cut, and encoded again:
once, into shards of their own below DATA/plans, which take as much room as the original shards.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hornbook.data.config.objectives import FillInTheMiddle
from hornbook.data.corpus import Corpus
from hornbook.data.order.random_keys import key_of
from hornbook.data.shards.shard import TokenShard
from hornbook.data.vocabulary import Vocabulary, load_vocabulary
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.artifact import digest_of, write_json
from hornbook.files.durable import storage_errors, writing_folder
from hornbook.text.tokenizer.shards import describe_shard, writing_shard

VERSION = 1
"""Part of every key: raise it when the same documents would be rearranged differently."""

_BATCH_TOKENS = 1 << 18


class Cut(NamedTuple):
    """A document in three parts."""

    prefix: str
    middle: str
    suffix: str
    suffix_first: bool


def cut(text: str, config: FillInTheMiddle, *name: object) -> Cut | None:
    """The cut of the document called `name`; None where it is stored unchanged."""
    share, order, *ends = (key_of("fim", *name, draw) for draw in range(4))
    if share >= config.rate * 2**64:
        return None
    first, second = sorted((end * (len(text) + 1)) >> 64 for end in ends)
    return Cut(text[:first], text[first:second], text[second:], order < config.suffix_first * 2**64)


def rearranged(corpus: Corpus, config: FillInTheMiddle, seed: int) -> Corpus:
    """A corpus with the training documents of `corpus`, rearranged; made on first use, then opened.

    Raises UsageError where the tokenizer lacks the three tokens or does not keep every character, and StorageError.
    """
    vocabulary = load_vocabulary(corpus)
    _marks(vocabulary)
    name = digest_of([VERSION, seed, config.model_dump(), corpus.fingerprint])
    folder = corpus.root / "plans" / f"fim-{name[:16]}"
    with storage_errors(folder):
        folder.parent.mkdir(exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ranks that start together make it once
            return _open(folder) or _make(folder, corpus, vocabulary, config, seed)


def _open(folder: Path) -> Corpus | None:
    """The corpus that was made before; None if there is none, or it is damaged."""
    if not folder.is_dir():
        return None
    try:
        return Corpus.open(folder)
    except IntegrityError:
        shutil.rmtree(folder)
        return None


def _make(folder: Path, corpus: Corpus, vocabulary: Vocabulary, config: FillInTheMiddle, seed: int) -> Corpus:
    shards = []
    with writing_folder(folder, synced=True) as stage:
        for source, stream in corpus.train.items():
            for shard in stream.shards:
                _write(stage, shard, vocabulary, config, seed, str(corpus.index["dtype"]))
                shards.append(describe_shard(stage, "train", source, int(Path(shard.name).name)).to_json())
        write_json(stage / "tokens" / "index.json", corpus.index | {"shards": shards})
    return Corpus.open(folder)


def _write(
    folder: Path, shard: TokenShard, vocabulary: Vocabulary, config: FillInTheMiddle, seed: int, dtype: str
) -> None:
    path = folder / shard.name
    path.parent.mkdir(parents=True, exist_ok=True)
    names: list[dict[str, Any]] = shard.table().to_pylist()
    with writing_shard(path, dtype) as writer:
        for first, documents in _batches(shard):
            numbers = range(first, first + len(documents))
            stored = _rearrange(documents, vocabulary, config, [(seed, shard.name, number) for number in numbers])
            for ids, row in zip(stored, names[first:], strict=False):
                writer.add(ids, row["id"], row["origin"], row["bytes"])


def _batches(shard: TokenShard) -> Iterator[tuple[int, list[np.ndarray]]]:
    """(number of the first document, tokens of some documents)"""
    begin, first, batch, filled, data = 0, 0, [], 0, shard.data
    for number, end in enumerate(shard.ends.tolist()):
        batch.append(data[begin:end])
        begin, filled = end, filled + len(batch[-1])
        if filled >= _BATCH_TOKENS or number == shard.documents - 1:
            yield first, batch
            first, batch, filled = number + 1, [], 0


def _rearrange(
    documents: Sequence[np.ndarray], vocabulary: Vocabulary, config: FillInTheMiddle, names: Sequence[tuple[Any, ...]]
) -> Iterator[np.ndarray]:
    """Documents as stored, rearranged or not."""
    tail = int(vocabulary.begin_id is not None)
    texts = [vocabulary.tokenizer.decode(ids[1 : len(ids) - tail].tolist()) for ids in documents]
    cuts = [cut(text, config, *name) for text, name in zip(texts, names, strict=True)]
    parts = [part for each in cuts if each is not None for part in each[:3]]
    encoded = (ids[1 : len(ids) - tail] for ids in vocabulary.tokenizer.encode_arrays(parts))
    for ids, text, each in zip(documents, texts, cuts, strict=True):
        if each is None:
            yield ids
            continue
        prefix, middle, suffix = next(encoded), next(encoded), next(encoded)
        _check(vocabulary, text, (prefix, middle, suffix))
        before, after, between = _marks(vocabulary)
        body = (
            (before, after, suffix, between, prefix, middle)
            if each.suffix_first
            else (before, prefix, after, suffix, between, middle)
        )
        yield np.concatenate([ids[:1], *body, ids[len(ids) - tail :]]).astype(np.uint32)


def _marks(vocabulary: Vocabulary) -> tuple[list[int], list[int], list[int]]:
    """The tokens before prefix, suffix and middle."""
    special = vocabulary.special
    if special.prefix is None or special.suffix is None or special.middle is None:
        spellings = "<|fim_prefix|>, <|fim_suffix|>, <|fim_middle|>"
        raise vocabulary.lacks("data.objective", "tokens for prefix, suffix and middle", "fim", spellings)
    return [special.prefix], [special.suffix], [special.middle]


def _check(vocabulary: Vocabulary, text: str, parts: Sequence[np.ndarray]) -> None:
    """Raise UsageError unless the parts decode to the text."""
    found = "".join(vocabulary.tokenizer.decode(part.tolist()) for part in parts)
    if found != text:
        raise UsageError(
            f"data.objective: fim cuts documents at characters, and {vocabulary.path} does not keep them: "
            f"{json.dumps(text[:40])} came back as {json.dumps(found[:40])}; take a byte-level tokenizer"
        )
