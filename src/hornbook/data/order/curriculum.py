"""A curriculum: the rows of a source's first epoch, from easy to hard.

It is a list that is made at the start of data, stages and seed, so that a row's place stays a pure function of its
position, whatever the ranks, and a checkpoint needs nothing new. Every row is in it once.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from hornbook.data.config.data import Curriculum
from hornbook.data.corpus import Stream
from hornbook.data.order.mixture import Stage
from hornbook.data.order.random_keys import STEP, below
from hornbook.data.packing.plan import Segments, stream_ends
from hornbook.errors import UsageError
from hornbook.kernels.compiled import compiled, mix

LENGTH = "length"


def competence(config: Curriculum, tokens: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The easiest share of the rows after `tokens` tokens of training (arXiv 1903.09848, equation 8)."""
    least = config.start**config.root
    return np.minimum(1.0, least + (1 - least) * tokens / config.over_tokens) ** (1 / config.root)


def draw_positions(stages: Sequence[Stage], source: int, end: int, most: int) -> Int64[np.ndarray, " draws"]:
    """Positions below `end` that hold draws of a source, in order, and at most the first `most` of them."""
    found, left = [np.empty(0, np.int64)], most
    for number, stage in enumerate(stages):
        last = min(end, stages[number + 1].first) if number + 1 < len(stages) else end
        if last > stage.first and stage.counts[source]:
            draws = min(int(stage.draws(last - stage.first)[source]), left)
            found.append(stage.first + stage.positions(source, draws))
            left -= draws
    return np.concatenate(found)


@compiled
def _paced(ranked, reach, state, out):
    """Draw row k from the easiest reach[k] rows (from k + 1, where those are all read), less those before it."""
    pool = np.empty(ranked.size, np.int64)
    entered, waiting = 0, 0
    for k in range(ranked.size):
        while entered < max(reach[k] if k < reach.size else ranked.size, k + 1):
            pool[waiting] = ranked[entered]
            entered += 1
            waiting += 1
        state += STEP
        place = below(mix(state), waiting)
        out[k] = pool[place]
        waiting -= 1
        pool[place] = pool[waiting]


def paced_order(
    difficulty: Float64[np.ndarray, " rows"], shares: Float64[np.ndarray, " draws"], key: int
) -> Int64[np.ndarray, " rows"]:
    """All rows once: draw k is among the easiest `shares[k]` of them (1 behind the last), drawn by the 64-bit key."""
    ranked = np.argsort(difficulty, kind="stable")
    out = np.empty(len(ranked), np.int64)
    _paced(ranked, np.ceil(shares * len(ranked)).astype(np.int64), np.uint64(key), out)
    return out


def row_difficulty(
    documents: Float64[np.ndarray, " documents"], ends: Int64[np.ndarray, " documents"], segments: Segments
) -> Float64[np.ndarray, " rows"]:
    """Mean over the tokens of each row of the difficulty of their documents; `ends`: END offsets in the stream."""
    begins = np.concatenate([[0], ends[:-1]])
    before = np.concatenate([[0.0], np.cumsum(documents * (ends - begins))])

    def until(places: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        inside = np.minimum(np.searchsorted(ends, places, side="right"), len(ends) - 1)
        return before[inside] + documents[inside] * (places - begins[inside])

    bounds, firsts, sizes = segments
    sums = np.add.reduceat(until(firsts + sizes) - until(firsts), bounds[:-1])
    return sums / np.add.reduceat(sizes, bounds[:-1])


def document_difficulty(root: Path, stream: Stream, config: Curriculum) -> Float64[np.ndarray, " documents"]:
    """Difficulty of each document of a stream of the data folder `root`; one without a value is as hard as the hardest.

    Raises UsageError where `prepare` measured no such column.
    """
    ends = stream_ends(stream)
    values = np.diff(ends, prepend=0).astype(np.float64) if config.by == LENGTH else _measured(root, stream, config.by)
    values = values if config.hardest == "highest" else -values
    known = np.isfinite(values)
    if not known.any():
        raise UsageError(f"data.curriculum.by: no document of source {stream.source} has a value of {config.by}")
    return np.where(known, values, values[known].max())


def _measured(root: Path, stream: Stream, column: str) -> Float64[np.ndarray, " documents"]:
    """A column of the signals of `prepare`, by the documents of the stream; NaN where there is none."""
    import pyarrow.compute as pc

    from hornbook.text.refinery.pipeline.decide import KEPT

    files = sorted((root / "signals").glob("*.parquet"))
    names = pq.read_schema(files[0]).names if files else []
    if column not in names:
        measured = [LENGTH, *(name for name in names if "." in name)]
        raise UsageError(f"data.curriculum.by: {root} has no column {column!r}: take one of {', '.join(measured)}")
    if not pa.types.is_integer(kind := pq.read_schema(files[0]).field(column).type) and not pa.types.is_floating(kind):
        raise UsageError(f"data.curriculum.by: {column} is of the type {kind}: take a column of numbers")
    kept = (pc.field("source") == stream.source) & (pc.field("reason") == KEPT)
    table = pa.concat_tables(pq.read_table(path, columns=["origin", column], filters=kept) for path in files)
    origins = pa.chunked_array([chunk for shard in stream.shards for chunk in shard.table()["origin"].chunks])
    places = pc.call_function("index_in", [origins], pc.SetLookupOptions(table["origin"].combine_chunks()))
    return table[column].take(places).cast(pa.float64()).to_numpy()
