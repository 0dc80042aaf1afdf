"""Scores and baselines of the held-out part of a corpus, source by source."""

import functools
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xxhash

from hornbook.data.batch import Batch
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.validation import HeldOut, held_out
from hornbook.evals.baselines import gzip_bits_per_byte, unigram_bits_per_byte
from hornbook.evals.labels import LabelScore, evaluate_labels
from hornbook.evals.loss import Score, evaluate
from hornbook.files.run_status import coverage
from hornbook.parallel.engine import Engine
from hornbook.progress import Progress, silent
from hornbook.settings.recipe import Recipe
from hornbook.text.config.labels import LabelsConfig
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize
from hornbook.text.tokenizer.tokenizer import Tokenizer

AnyScore = Score | LabelScore


@dataclass(frozen=True)
class Scores:
    """The score of each source, and of how much of its validation text it is."""

    by_source: dict[str, AnyScore]
    held_out: dict[str, HeldOut]

    @property
    def total(self) -> AnyScore:
        """The score of all sources together; they are of one kind."""
        first, *rest = self.by_source.values()
        return functools.reduce(lambda total, part: total + cast(Any, part), rest, first)

    @property
    def coverage(self) -> str:
        """`32,768 of 85,732 tokens`."""
        return coverage(self._read(self.held_out.values()))

    def report(self) -> dict[str, Any]:
        """Figures of each source under `sources`, of all together under `all`; `rows` names the rows they are of."""
        rows = xxhash.xxh3_64_hexdigest(" ".join(part.digest for part in self.held_out.values()).encode())
        sources = {name: score.as_dict() | self._read([self.held_out[name]]) for name, score in self.by_source.items()}
        return {"rows": rows, "sources": sources, "all": self.total.as_dict() | self._read(self.held_out.values())}

    @staticmethod
    def _read(parts: Iterable[HeldOut]) -> dict[str, int]:
        """Tokens of text that were read, of how many there are."""
        parts = list(parts)
        return {"read": sum(part.read for part in parts), "of": sum(part.of for part in parts)}


def validation_rows(corpus: Corpus, recipe: Recipe, sequence: int, max_tokens: int | None = None) -> dict[str, HeldOut]:
    """The validation rows of each source as `recipe` asks for them, of at most `max_tokens` tokens each (None: all)."""
    return {
        source: held_out(
            corpus,
            source,
            sequence=sequence,
            max_tokens=max_tokens,
            document_mask=recipe.data.document_mask,
            objective=recipe.data.objective,
            seed=recipe.seed,
        )
        for source in corpus.validation
    }


def score_rows(
    engine: Engine,
    corpus: Corpus,
    rows: Mapping[str, HeldOut],
    token_bytes: np.ndarray,
    *,
    micro_batch: int,
    going: Callable[[], bool] = lambda: True,
    progress: Progress = silent,
) -> Scores:
    """Score of the rows of each source.

    `token_bytes` [vocab]: UTF-8 bytes each token stands for. Windows are disjoint, and each token of the rows but a
    document's delimiter is predicted once. Of labels, each is scored once. When `going` says no, the rest is left out.
    `progress` hears of rows.
    """
    sizes = torch.from_numpy(token_bytes).long()
    scores: dict[str, AnyScore] = {}
    done, total = 0, sum(len(part.rows) for part in rows.values())

    def counted(batches: Iterator[Batch]) -> Iterator[Batch]:
        nonlocal done
        for batch in batches:
            progress("score rows", done, total)
            yield batch
            done += len(batch.samples)

    for source, part in rows.items():
        batches = counted(itertools.takewhile(lambda _: going(), part.batches(micro_batch)))
        if part.labelled:
            scores[source] = evaluate_labels(engine, batches, corpus, source, part.plan)
        else:
            scores[source] = evaluate(engine, batches, sizes)
    return Scores(scores, dict(rows))


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
    paths: Sequence[str],
    tokenizer_folder: Path,
    labels: LabelsConfig | None = None,
    progress: Progress | None = None,
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
        prepare(config, Path(scratch), workers=1, progress=progress)
        tokenize(Path(scratch), config, workers=1, progress=progress)
        corpus = Corpus.open(scratch)
        yield Corpus(corpus.root, corpus.index, {"train": {}, "validation": corpus.train})
