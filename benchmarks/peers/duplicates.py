"""Libraries that find duplicates, each as its documentation says: `python -m benchmarks.peers.duplicates NAME IN OUT`.

IN holds {"texts": [...], "items": [...]}; OUT gets {"seconds": CPU seconds of the work alone, "result": ...}. This runs
in the environment of the peers, so it imports nothing of hornbook. Near duplicates: 14 bands of 8, 5-word shingles.
"""

# pyright: reportMissingImports=false

import json
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

BANDS, ROWS, SHINGLE, NGRAM, LINE_BYTES, SPAN_BYTES = 14, 8, 5, 13, 40, 300


def grams(text: str) -> set[str]:
    """Shingles of what stands between blanks."""
    words = text.split()
    width = min(SHINGLE, len(words))
    return {" ".join(words[start : start + width]) for start in range(len(words) - width + 1)} if words else set()


def clusters(count: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """The first member of each document's cluster."""
    parents = list(range(count))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for one, other in links:
        first, last = sorted((root(one), root(other)))
        parents[last] = first
    return [root(row) for row in range(count)]


def near_rensa(texts: list[str], _: list[str]) -> list[int]:
    """Bulk digests, bulk insertion, bulk queries."""
    import rensa

    sketches = rensa.RMinHash.from_token_sets((list(grams(text)) for text in texts), BANDS * ROWS, 42)
    index = rensa.RMinHashLSH(threshold=0.72, num_perm=BANDS * ROWS, num_bands=BANDS)
    index.insert_many(sketches)
    found = index.query_all(sketches)
    return clusters(len(texts), ((row, other) for row, others in enumerate(found) for other in others))


def near_datasketch(texts: list[str], _: list[str]) -> list[int]:
    """update_batch, and an index with the bands given."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    links = []
    for row, text in enumerate(texts):
        sketch = MinHash(num_perm=BANDS * ROWS)
        sketch.update_batch([gram.encode() for gram in grams(text)])
        links += [(row, other) for other in index.query(sketch)]
        index.insert(row, sketch, check_duplication=False)
    return clusters(len(texts), links)


class Blanks:
    """A word tokenizer for datatrove: what stands between blanks."""

    def word_tokenize(self, text: str) -> list[str]:
        """Words."""
        return text.split()


def datatrove_documents(texts: list[str]) -> Iterator[Any]:
    """As datatrove's readers give them."""
    from datatrove.data import Document

    for row, text in enumerate(texts):
        yield Document(text=text, id=str(row))


def near_datatrove(texts: list[str], _: list[str], words: Any = None) -> list[int]:
    """Stages 1 to 3 in one process, with its own words and simplified text unless `words` is given."""
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig

    config = MinhashConfig(n_grams=SHINGLE, num_buckets=BANDS, hashes_per_bucket=ROWS)
    with tempfile.TemporaryDirectory() as folder:
        signatures = MinhashDedupSignature(f"{folder}/sig", config)
        if words:
            signatures.word_tokenizer = words
        signatures.run(datatrove_documents(texts), 0, 1)
        for bucket in range(BANDS):
            MinhashDedupBuckets(f"{folder}/sig", f"{folder}/dups", config=config).run(None, bucket, BANDS)
        MinhashDedupCluster(f"{folder}/dups", f"{folder}/out", config=config, save_cluster_id=True).run(None, 0, 1)
        data = b"".join(path.read_bytes() for path in sorted(Path(folder, "out").glob("*.clusters")))
    first: dict[int, int] = {}
    return clusters(len(texts), ((row, first.setdefault(name, row)) for row, name in struct.iter_unpack("<II", data)))


def near_datatrove_blanks(texts: list[str], items: list[str]) -> list[int]:
    """With words between blanks."""
    return near_datatrove(texts, items, Blanks())


def exact_polars(texts: list[str], _: list[str]) -> int:
    """How many documents are later copies."""
    import polars as pl

    return int((~pl.Series(texts).is_first_distinct()).sum())


def lines_polars(texts: list[str], _: list[str]) -> int:
    """Bytes in lines that are later copies."""
    import polars as pl

    lines = pl.DataFrame({"row": range(len(texts)), "line": pl.Series(texts).str.split("\n")}).explode("line")
    core = pl.col("line").str.strip_chars()
    lines = lines.with_columns(copy=(core.str.len_bytes() >= LINE_BYTES) & ~core.is_first_distinct())
    return int(lines.filter("copy")["line"].str.len_bytes().sum()) + int(lines["copy"].sum())


def spans_suffix_array(texts: list[str], _: list[str]) -> int:
    """Bytes in repeats of 300 bytes or more: libdivsufsort and Kasai's algorithm, as Lee et al. 2022 but in memory."""
    import numpy as np
    from pydivsufsort import divsufsort, kasai

    data = "\x00".join(texts).encode()
    array = divsufsort(data)
    shared = kasai(data, array)
    later = np.maximum(array[:-1], array[1:])[shared[:-1] >= SPAN_BYTES]
    marks = np.zeros(len(data) + SPAN_BYTES + 1, np.int32)
    np.add.at(marks, later, 1)
    np.add.at(marks, later + SPAN_BYTES, -1)
    return int((np.cumsum(marks) > 0).sum())


def decontaminate_datatrove(texts: list[str], items: list[str]) -> list[int]:
    """Which documents hold a 13-gram of an item, by words between blanks: with its own words it is far slower."""
    from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter, NGramsDecontIndexer

    step = NGramsDecontFilter(".", NGramsDecontConfig(n_grams=NGRAM))
    step.tokenizer = Blanks()
    # the indexer itself cannot be made without lighteval, which downloads its tasks
    step._index_hashes = {key: "items" for item in items for key in NGramsDecontIndexer.compute_hashes(step, item)}
    return [row for row, each in enumerate(datatrove_documents(texts)) if step.filter(each) is not True]


WORK: dict[str, Callable[[list[str], list[str]], Any]] = {
    "near: rensa": near_rensa,
    "near: datasketch": near_datasketch,
    "near: datatrove, stock": near_datatrove,
    "near: datatrove, words between blanks": near_datatrove_blanks,
    "exact: polars": exact_polars,
    "lines: polars": lines_polars,
    "spans: suffix array (pydivsufsort)": spans_suffix_array,
    "decontamination: datatrove, words between blanks": decontaminate_datatrove,
}


def main(work: dict[str, Callable[[list[str], list[str]], Any]]) -> None:
    """Do one piece of work twice: first on a few documents, to load and compile, then on all."""
    name, source, out = sys.argv[1:]
    given = json.loads(Path(source).read_text())
    work[name](given["texts"][:20], given["items"])
    begin = time.process_time()
    result = work[name](given["texts"], given["items"])
    Path(out).write_text(json.dumps({"seconds": time.process_time() - begin, "result": result}))


if __name__ == "__main__":
    main(WORK)
