from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.corpus import Corpus
from hornbook.data.packing.plan import build_plan
from hornbook.data.packing.rows import RowReader
from hornbook.data.shards.shard_table import ShardTable
from hornbook.errors import IntegrityError
from tests.data.conftest import restate


def reference_row(raw: Any, source: str, pieces: list[tuple[int, int]], sequence: int, mask: bool) -> dict[str, Any]:
    """One row, token by token, from the plain lists of documents."""
    stream = [
        (token, document[k + 1] if k + 1 < len(document) else None, number)
        for number, document in enumerate(raw.documents["train"][source])
        for k, token in enumerate(document)
    ]
    row: dict[str, Any] = {"tokens": [], "targets": [], "weights": [], "positions": [], "lengths": []}
    last = None
    for begin, length in pieces:
        for at in range(begin, begin + length):
            token, target, document = stream[at]
            if (document, at - 1) != last:
                row["lengths"].append(0)
            last = (document, at)
            row["tokens"].append(token)
            row["targets"].append(raw.end if target is None else target)
            row["weights"].append(1.0 if target is not None or raw.end == raw.delimiter else 0.0)
            row["positions"].append(row["lengths"][-1] if mask else len(row["positions"]))
            row["lengths"][-1] += 1
    padding = sequence - len(row["tokens"])
    if padding:
        row["lengths"].append(padding)
        row["tokens"] += [raw.end] * padding
        row["targets"] += [raw.end] * padding
        row["weights"] += [0.0] * padding
        row["positions"] += range(padding) if mask else range(sequence - padding, sequence)
    row["lengths"] = tuple(row["lengths"]) if mask else (sequence,)
    return row


@given(
    lengths=st.lists(st.integers(2, 30), min_size=1, max_size=12),
    sequence=st.integers(2, 24),
    mask=st.booleans(),
    packing=st.sampled_from(["concat", "best_fit"]),
    written=st.fixed_dictionaries(
        {"shards": st.integers(1, 4), "separate_end": st.booleans(), "dtype": st.sampled_from(["uint16", "uint32"])}
    ),
)
def test_rows_equal_the_slow_reference(
    make_corpus: Callable, *, lengths: list[int], sequence: int, mask: bool, packing: Any, written: dict[str, Any]
) -> None:
    raw = make_corpus({"a": lengths, "b": [5, 2, 9]}, **written)
    corpus = Corpus.open(raw.path)
    streams = [corpus.train["b"], corpus.train["a"]]
    plan = build_plan(streams[1], sequence, packing)
    offsets, begins, sizes = segments = plan.segments(np.arange(plan.rows))
    reader = RowReader(corpus, streams, sequence=sequence, document_mask=mask)
    rows = reader.read(np.ones(plan.rows, np.int64), segments)
    total = 0.0
    for k in range(plan.rows):
        mine = slice(offsets[k], offsets[k + 1])
        pieces = list(zip(begins[mine].tolist(), sizes[mine].tolist(), strict=True))
        expected = reference_row(raw, "a", pieces, sequence, mask)
        for name in ("tokens", "targets", "weights", "positions"):
            assert getattr(rows.arrays, name)[k].tolist() == expected[name], name
        assert rows.document_lengths[k] == expected["lengths"]
        total += sum(expected["weights"])
        named = [ShardTable(corpus, streams).documents(1, begin, size) for begin, size in pieces]
        assert sum(length for some in named for _, _, _, length in some) == sum(size for _, size in pieces)
    assert rows.total_weight == total
    arrays = rows.arrays
    assert arrays.ids.tobytes() == arrays.tokens.astype("<i4").tobytes()
    assert arrays.tokens.dtype == arrays.targets.dtype == arrays.positions.dtype == np.int64
    assert arrays.weights.dtype == np.float32


def test_every_token_is_predicted_once_in_an_epoch(make_corpus: Callable) -> None:
    for packing in ("concat", "best_fit"):
        for separate_end in (False, True):
            raw = make_corpus({"a": [7, 30, 3, 3, 64, 12]}, shards=2, separate_end=separate_end)
            corpus = Corpus.open(raw.path)
            stream = corpus.train["a"]
            plan = build_plan(stream, 16, packing)
            rows = RowReader(corpus, [stream], sequence=16, document_mask=True).read(
                np.zeros(plan.rows, np.int64), plan.segments(np.arange(plan.rows))
            )
            counted = rows.arrays.weights > 0
            predicted = sorted(rows.arrays.targets[counted].tolist())
            documents = raw.documents["train"]["a"]
            due = [token for document in documents for token in document[1:]]
            due += [] if separate_end else [raw.end] * len(documents)
            assert predicted == sorted(due)


def test_ids_outside_the_vocabulary_and_bad_ends_are_damage(make_corpus: Callable) -> None:
    for dtype in ("uint16", "uint32"):
        folder = make_corpus({"a": [8, 8, 8]}, dtype=dtype).path
        shard = folder / "tokens/train/a/00000"

        def read(folder: Any = folder, length: int = 24) -> None:
            corpus = Corpus.open(folder)
            reader = RowReader(corpus, [corpus.train["a"]], sequence=length, document_mask=True)
            reader.read(np.zeros(1, np.int64), (np.array([0, 1]), np.array([0]), np.array([length])))

        read()
        tokens = np.fromfile(f"{shard}.bin", dtype)
        tokens[11] = 40_000
        tokens.tofile(f"{shard}.bin")
        restate(folder)
        for length in (24, 12, 11):  # within the row, its last input, and the target after its last input
            with pytest.raises(IntegrityError, match=r"00000.bin: found token id 40000, expected ids below 1000"):
                read(length=length)
        tokens[11] = 4
        tokens.tofile(f"{shard}.bin")
        np.array([16, 8, 24], np.uint64).tofile(f"{shard}.idx")
        restate(folder)
        with pytest.raises(IntegrityError, match=r"00000.idx: document ends do not ascend"):
            read()
        np.array([8, 2**40, 24], np.uint64).tofile(f"{shard}.idx")
        restate(folder)
        with pytest.raises(IntegrityError, match=r"00000.idx: document ends do not ascend"):
            read()
