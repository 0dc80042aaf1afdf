"""datatrove from raw text to tokens: `python -m benchmarks.peers.datatrove_pipeline stock|blanks RAW TOKENIZER OUT`.

One task, its steps called in turn without the executor: read, normalise, drop copies, filter, write what stays, MinHash
in its four stages, encode. `stock` splits words with spaCy, as datatrove does; `blanks` splits between blanks. OUT gets
the documents that the filters left (filtered/), ids of those that MinHash left too (kept.json) and tokens (tokens/).
This runs in the environment of the peers, so it imports nothing of hornbook.
"""

# pyright: reportMissingImports=false

import json
import re
import sys
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import xxhash
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter
from datatrove.pipeline.formatters.base import BaseFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter

BANDS, ROWS, SHINGLE = 14, 8, 5
SPLITTERS: tuple[Any, ...] = (gopher_quality_filter, gopher_repetition_filter, fineweb_quality_filter)
LINE_ENDS = re.compile(r"\r\n?")
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
END = "<|endoftext|>"


class Blanks:
    """A word tokenizer for datatrove: the words between blanks."""

    def word_tokenize(self, text: str) -> list[str]:
        """Words."""
        return text.split()


class Normalize(BaseFormatter):
    """Line ends, control characters, NFC."""

    name = "normalize"

    def format(self, text: str) -> str:
        """The text in its form."""
        return unicodedata.normalize("NFC", CONTROLS.sub("", LINE_ENDS.sub("\n", text)))


class DropCopies(PipelineStep):
    """A set of digests: less work than datatrove's own stages for exact copies, which read the text twice more."""

    name = "copies"

    def run(self, data: Iterable[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Documents that were not there before."""
        del rank, world_size
        seen: set[bytes] = set()
        for document in data:
            digest = xxhash.xxh3_128_digest(document.text)
            if digest not in seen:
                seen.add(digest)
                yield document


def chain(*steps: Any) -> Iterable[Any]:
    """What the last step gives."""
    data: Any = None
    for step in steps:
        data = step.run(data, 0, 1)
    return data or ()


def run(words: str, raw: str, tokenizer: str, out: str) -> None:
    """All of it."""
    config = MinhashConfig(n_grams=SHINGLE, num_buckets=BANDS, hashes_per_bucket=ROWS)
    signatures = MinhashDedupSignature(f"{out}/signatures", config)
    if words == "blanks":
        signatures.word_tokenizer = Blanks()
        for module in SPLITTERS:
            module.split_into_words = lambda text, _: text.split()
    filters = [
        gopher_quality_filter.GopherQualityFilter(),
        gopher_repetition_filter.GopherRepetitionFilter(),
        fineweb_quality_filter.FineWebQualityFilter(),
    ]
    kept_by_rules = JsonlWriter(f"{out}/filtered", compression=None)
    chain(JsonlReader(raw, compression=None), Normalize(), DropCopies(), *filters, kept_by_rules, signatures)
    for bucket in range(BANDS):
        MinhashDedupBuckets(f"{out}/signatures", f"{out}/pairs", config=config).run(None, bucket, BANDS)
    MinhashDedupCluster(f"{out}/pairs", f"{out}/remove", config=config).run(None, 0, 1)
    kept: list[str] = []
    documents = chain(JsonlReader(f"{out}/filtered", compression=None), MinhashDedupFilter(f"{out}/remove"))
    encoder = DocumentTokenizer(f"{out}/tokens", tokenizer, eos_token=END, shuffle_documents=False)
    deque(encoder.run(_noting(documents, kept), 0, 1) or (), maxlen=0)
    Path(out, "kept.json").write_text(json.dumps(kept))


def _noting(documents: Iterable[Any], ids: list[str]) -> Iterator[Any]:
    for document in documents:
        ids.append(document.id)
        yield document


if __name__ == "__main__":
    run(*sys.argv[1:])
