"""Scores and baselines of the held-out part of a corpus, source by source."""

import functools
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from hornbook.data.config import Causal, Labels, ObjectiveConfig
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.validation import validation_batches, validation_plan
from hornbook.evals.baselines import gzip_bits_per_byte, unigram_bits_per_byte
from hornbook.evals.labels import LabelScore, evaluate_labels
from hornbook.evals.loss import Score, evaluate
from hornbook.parallel.engine import Engine
from hornbook.text.config import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.config_labels import LabelsConfig
from hornbook.text.prepare import prepare
from hornbook.text.tokenize import tokenize
from hornbook.text.tokenizer import Tokenizer

_CAUSAL = Causal()
AnyScore = Score | LabelScore


def score_sources(
    engine: Engine,
    corpus: Corpus,
    token_bytes: np.ndarray,
    *,
    sequence: int,
    micro_batch: int,
    document_mask: bool,
    max_tokens: int | None = None,
    objective: ObjectiveConfig = _CAUSAL,
    seed: int = 0,
) -> dict[str, AnyScore]:
    """Score of each source's validation tokens, the first `max_tokens` of each (None: all).

    `token_bytes` [vocab]: UTF-8 bytes each token stands for. Windows of `sequence` tokens are disjoint, and
    each token but a document's delimiter is predicted once. Of labels, each is scored once.
    """
    sizes = torch.from_numpy(token_bytes).long()
    scores: dict[str, AnyScore] = {}
    for source, stream in corpus.validation.items():
        most = stream.tokens if max_tokens is None else max_tokens
        batches = validation_batches(
            corpus,
            source,
            sequence=sequence,
            micro_batch=micro_batch,
            max_tokens=most,
            document_mask=document_mask,
            objective=objective,
            seed=seed,
        )
        if isinstance(objective, Labels):
            plan = validation_plan(corpus, source, sequence, most, objective)
            scores[source] = evaluate_labels(engine, batches, corpus, source, plan)
        else:
            scores[source] = evaluate(engine, batches, sizes)
    return scores


def in_all(scores: Iterable[AnyScore]) -> AnyScore:
    """The score of all parts together; they are of one kind."""
    first, *rest = scores
    return functools.reduce(lambda total, part: total + cast(Any, part), rest, first)


def report(scores: Mapping[str, AnyScore]) -> dict[str, Any]:
    """Figures of all sources together, and of each under `sources`."""
    total = in_all(scores.values())
    return total.as_dict() | {"sources": {source: score.as_dict() for source, score in scores.items()}}


def baselines(corpus: Corpus, tokenizer: Tokenizer) -> dict[str, float]:
    """Bits per byte of the validation text under gzip and under the unigram model of the training tokens."""
    documents = [
        tokenizer.decode(tokens.tolist()).encode()
        for stream in corpus.validation.values()
        for tokens in _documents(stream, {corpus.delimiter_id, corpus.end_id})
    ]
    alone, joined = gzip_bits_per_byte(documents)
    unigram = unigram_bits_per_byte(_counts(corpus, "train"), _counts(corpus, "validation"), sum(map(len, documents)))
    return {"gzip_per_document": alone, "gzip_concatenated": joined, "unigram": unigram}


def _documents(stream: Stream, special: set[int]) -> Iterator[np.ndarray]:
    """Token ids of each document, without its delimiter and end."""
    for shard in stream.shards:
        start, data = 0, shard.data
        for end in shard.ends.tolist():
            tokens = data[start:end]
            yield tokens[~np.isin(tokens, list(special))]
            start = end


def _counts(corpus: Corpus, split: str) -> np.ndarray:
    """How often each token occurs in a split: int64 [vocab]."""
    streams: Mapping[str, Stream] = getattr(corpus, split)
    counts = np.zeros(corpus.vocab_size, np.int64)
    for stream in streams.values():
        for shard in stream.shards:
            counts += np.bincount(shard.data, minlength=corpus.vocab_size)
    return counts


@contextmanager
def corpus_of_files(
    paths: Sequence[str], tokenizer_folder: Path, labels: LabelsConfig | None = None
) -> Iterator[Corpus]:
    """A corpus whose validation split is the whole text of `paths`, one source per path, in a temporary folder.

    The text is read and tokenized as `prepare` and `tokenize` do, but nothing is edited, dropped or held out. `labels`:
    the files are a labelled set.
    """
    names = [Path(path).name.partition(".")[0] for path in paths]
    if len(set(names)) < len(names) or not all(re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) for name in names):
        names = [f"source{i}" for i in range(len(paths))]
    sources = {name: SourceConfig(paths=[path]) for name, path in zip(names, paths, strict=True)}
    tokenizer = TokenizerFile(path=str(tokenizer_folder))
    config = TextConfig(sources=sources, labels=labels, steps=[], tokenizer=tokenizer, validation=0.0)
    with tempfile.TemporaryDirectory(prefix="hornbook-eval-") as scratch:
        prepare(config, Path(scratch), workers=1)
        tokenize(Path(scratch), config, workers=1)
        corpus = Corpus.open(scratch)
        yield Corpus(corpus.root, corpus.index, {"train": {}, "validation": corpus.train})
