from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.corpus import Corpus
from hornbook.data.packing import plan as plan_module
from hornbook.data.packing.packing import best_fit
from hornbook.data.packing.plan import PlanSet, build_plan, stream_ends


def reference_rows(lengths: list[int], sequence: int) -> list[int]:
    """Rooms left in the rows of best-fit-decreasing by trying every open row, sorted."""
    pieces = [piece for length in lengths for piece in [sequence] * (length // sequence) + [length % sequence] if piece]
    rooms: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fitting = [room for room in rooms if room >= piece]
        if fitting:
            room = min(fitting)
            rooms.remove(room)
        else:
            room = sequence
        rooms.append(room - piece)
    return sorted(rooms)


def rows_of(table: np.ndarray) -> dict[int, list[tuple[int, int]]]:
    rows: dict[int, list[tuple[int, int]]] = {}
    for row, begin, length in table.T.tolist():
        rows.setdefault(row, []).append((begin, length))
    return rows


@given(st.lists(st.integers(0, 90), max_size=60), st.integers(1, 70))
def test_best_fit_places_every_token_once_and_cuts_no_document_that_fits(lengths: list[int], sequence: int) -> None:
    ends = np.cumsum(lengths, dtype=np.int64)
    table = best_fit(ends, sequence)
    rows = rows_of(table)
    assert list(rows) == list(range(len(rows)))
    assert all(sum(length for _, length in pieces) <= sequence for pieces in rows.values())
    assert all(pieces == sorted(pieces) for pieces in rows.values())
    firsts = [pieces[0][0] for pieces in rows.values()]
    assert firsts == sorted(firsts)
    placed = sorted((begin, length) for pieces in rows.values() for begin, length in pieces)
    expected = []
    for end, length in zip(ends.tolist(), lengths, strict=True):
        first = end - length
        expected += [(at, min(sequence, end - at)) for at in range(first, end, sequence)]
    assert placed == expected


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 200))
def test_best_fit_leaves_the_same_rooms_as_the_slow_reference(lengths: list[int], sequence: int) -> None:
    rows = rows_of(best_fit(np.cumsum(lengths, dtype=np.int64), sequence))
    rooms = sorted(sequence - sum(length for _, length in pieces) for pieces in rows.values())
    assert rooms == reference_rows(lengths, sequence)


@pytest.mark.parametrize("sequence", [512, 1024, 2048])
def test_padding_is_below_a_thousandth_on_real_lengths(sequence: int) -> None:
    rng = np.random.default_rng(0)
    lengths = np.maximum(2, rng.lognormal(np.log(350), 1.2, 30_000)).astype(np.int64)
    table = best_fit(np.cumsum(lengths), sequence)
    assert 1 - lengths.sum() / ((table[0, -1] + 1) * sequence) < 0.001


def test_plans_cover_the_stream_once(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [3, 17, 40, 5, 5, 9], "b": [11, 6, 48]}, shards=3)
    streams = list(Corpus.open(raw.path).train.values())
    for packing in ("concat", "best_fit"):
        plans = [build_plan(stream, 16, packing) for stream in streams]
        chosen = [(source, row) for source, plan in enumerate(plans) for row in reversed(range(plan.rows))]
        chosen = chosen[::2] + chosen[1::2]
        sources, rows = np.array(chosen).T
        offsets, begins, lengths = PlanSet(plans).segments(sources, rows)
        covered: dict[int, list[int]] = {0: [], 1: []}
        for k, (source, row) in enumerate(chosen):
            mine = slice(offsets[k], offsets[k + 1])
            alone = plans[source].segments(np.array([row]))
            assert begins[mine].tolist() == alone[1].tolist()
            for begin, length in zip(begins[mine], lengths[mine], strict=True):
                covered[source] += range(begin, begin + length)
        for source, stream in enumerate(streams):
            assert sorted(covered[source]) == list(range(stream.tokens))
            assert plans[source].padding == plans[source].rows * 16 - stream.tokens


def test_the_table_is_kept_verified_and_made_again_when_damaged(
    make_corpus: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Corpus.open(make_corpus({"a": [3, 17, 40, 5]}).path).train["a"]
    cache = tmp_path / "plans"
    first = build_plan(stream, 16, "best_fit", cache)
    (file,) = cache.iterdir()
    calls = []

    def counted(ends: np.ndarray, sequence: int) -> np.ndarray:
        calls.append(sequence)
        return best_fit(ends, sequence)

    monkeypatch.setattr(plan_module, "best_fit", counted)
    assert build_plan(stream, 16, "best_fit", cache).digest == first.digest
    assert calls == []
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    file.write_bytes(damaged)
    assert build_plan(stream, 16, "best_fit", cache).digest == first.digest
    assert calls == [16]
    file.write_bytes(damaged[:50])
    assert build_plan(stream, 16, "best_fit", cache).digest == first.digest
    assert calls == [16, 16]
    assert [path.name for path in cache.iterdir()] == [file.name]
    assert build_plan(stream, 17, "best_fit", cache).digest != first.digest


def test_a_folder_that_cannot_be_written_costs_only_time(make_corpus: Callable, tmp_path: Path) -> None:
    stream = Corpus.open(make_corpus({"a": [3, 17]}).path).train["a"]
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert build_plan(stream, 16, "best_fit", blocked / "plans").rows == 2


def test_digests_follow_the_content(make_corpus: Callable) -> None:
    digests = set()
    for lengths, seed in (([9, 9], 0), ([9, 9], 1), ([8, 10], 0)):
        stream = Corpus.open(make_corpus({"a": lengths}, seed=seed).path).train["a"]
        assert stream_ends(stream).tolist() == np.cumsum(lengths).tolist()
        digests |= {build_plan(stream, sequence, "concat").digest for sequence in (4, 8)}
    assert len(digests) == 6
