import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.data.batch import GlobalBatch
from hornbook.data.config.data import DataConfig, StageConfig
from hornbook.data.loader.loader import (
    Loader,
    build_loader,
    merge_ranges,
    positions_of,
    repetition_warnings,
    seen_text,
)
from hornbook.errors import IntegrityError, UsageError
from tests.data.conftest import restate

TENSORS = ("tokens", "targets", "weights", "positions", "samples", "sources")
SEQUENCE = 16


@pytest.fixture(scope="module")
def raw(make_corpus: Callable) -> Any:
    rng = np.random.default_rng(5)
    lengths = {name: rng.integers(2, 60, count).tolist() for name, count in (("a", 300), ("b", 80), ("c", 11))}
    return make_corpus(lengths, shards=3)


def loader(raw: Any, *, micro_batch: int = 4, seed: int = 1, prefetch: bool = True, **config: Any) -> Loader:
    return build_loader(
        DataConfig(**config), raw.path, sequence=SEQUENCE, micro_batch=micro_batch, seed=seed, prefetch=prefetch
    )


def rows(batch: GlobalBatch) -> dict[str, torch.Tensor]:
    return {name: torch.cat([getattr(part, name) for part in batch.batches]) for name in TENSORS}


def same(left: GlobalBatch, right: GlobalBatch) -> bool:
    tensors = zip(rows(left).values(), rows(right).values(), strict=True)
    facts = [(b.token_hash, b.total_weight, b.first_sample, b.num_samples, b.tokens) for b in (left, right)]
    return facts[0] == facts[1] and all(torch.equal(a, b) for a, b in tensors)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("order", ["shuffled", "sequential", "replacement"])
def test_restart_seek_and_prefetch_give_the_same_batches(raw: Any, packing: Any, order: Any) -> None:
    config = {"packing": packing, "order": order, "weights": {"a": 0.6, "b": 0.3, "c": 0.1}}
    first = loader(raw, **config)
    batches = [first.take(10) for _ in range(30)]
    again = loader(raw, prefetch=False, **config)
    assert all(same(batch, again.take(10)) for batch in batches)
    for start in (0, 7, 29, 3, 4):
        again.seek(10 * start)
        first.seek(10 * start)
        assert same(batches[start], again.take(10))
        assert same(batches[start], first.take(10))
        assert first.clock == again.clock == 10 * start + 10
    assert len({batch.token_hash for batch in batches}) == 30
    assert [batch.first_sample for batch in batches] == list(range(0, 300, 10))


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 64])
def test_micro_batch_changes_only_the_cut(raw: Any, micro_batch: int) -> None:
    one, other = loader(raw).take(10), loader(raw, micro_batch=micro_batch).take(10)
    assert same(one, other)
    assert [len(batch.tokens) for batch in one.batches] == [4, 4, 2]
    assert sum(len(batch.tokens) for batch in other.batches) == 10
    assert max(len(batch.tokens) for batch in other.batches) == min(micro_batch, 10)
    assert [row for batch in one.batches for row in batch.document_lengths] == [
        row for batch in other.batches for row in batch.document_lengths
    ]


def test_batch_size_may_change_on_the_way(raw: Any) -> None:
    ramp, flat = loader(raw), loader(raw)
    parts = [rows(ramp.take(count))["tokens"] for count in (1, 4, 4, 16)]
    assert torch.equal(torch.cat(parts), rows(flat.take(25))["tokens"])


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_any_number_of_ranks_shares_the_same_global_batch(raw: Any, world: int) -> None:
    alone = loader(raw)
    ranks = [loader(raw) for _ in range(world)]
    for count in (30, 30, 9):
        whole = alone.take(count)
        shares = [rank.take(count, rank=number, world=world) for number, rank in enumerate(ranks)]
        assert {share.token_hash for share in shares} == {whole.token_hash}
        assert {share.total_weight for share in shares} == {whole.total_weight}
        for j, batch in enumerate(whole.batches):
            theirs = shares[j % world].batches[j // world]
            assert all(torch.equal(getattr(batch, name), getattr(theirs, name)) for name in TENSORS)
            assert batch.document_lengths == theirs.document_lengths
        assert len({len(share.batches) for share in shares}) == 1  # ranks go through the model together
        theirs = [batch for share in shares for batch in share.batches]
        assert sum(not batch.is_empty for batch in theirs) == len(whole.batches)
        assert not any(batch.weights.any() for batch in theirs if batch.is_empty)


def left(skipped: list[tuple[int, int]], count: int) -> list[int]:
    """The first `count` positions that are in no skipped range, found by looking at each."""
    all_positions = itertools.count()
    return list(itertools.islice((p for p in all_positions if not any(a <= p < b for a, b in skipped)), count))


def test_skipped_ranges_are_left_out_exactly(raw: Any) -> None:
    plain, skipping = loader(raw), loader(raw)
    positions = rows(plain.take(200))
    skipped = [(20, 50), (45, 60), (130, 131)]
    first = skipping.take(10)
    skipping.skip(skipped[:2])
    skipping.skip(skipped[2:])
    skipping.skip(skipped)
    kept = left(skipped, 150)
    taken = [first, *(skipping.take(10) for _ in range(14))]
    samples = torch.cat([rows(batch)["samples"] for batch in taken]).tolist()
    assert samples == kept
    assert torch.equal(torch.cat([rows(batch)["tokens"] for batch in taken]), positions["tokens"][kept])
    assert skipping.clock == 150
    assert skipping.skipped == ((20, 60), (130, 131))
    again = loader(raw)
    again.skip(skipped)
    again.seek(100)
    assert rows(again.take(10))["samples"].tolist() == kept[100:110]


steps = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 9)),
    st.tuples(st.just("seek"), st.integers(0, 90)),
    st.tuples(st.just("skip"), st.tuples(st.integers(0, 90), st.integers(1, 9))),
)


@settings(max_examples=25)
@given(st.lists(steps, max_size=12))
def test_any_use_gives_what_the_index_says(raw: Any, walk: list[tuple[str, Any]]) -> None:
    data, clock, skipped = loader(raw), 0, []
    for verb, value in walk:
        if verb == "take":
            batch = data.take(value)
            positions = np.array(left(skipped, clock + value)[clock:], np.int64)
            assert same(batch, data.index.batch(positions, 4))
            clock += value
        elif verb == "seek":
            data.seek(value)
            clock = value
        else:
            skipped.append((value[0], value[0] + value[1]))
            data.skip(skipped[-1:])
        assert data.clock == clock
    data.close()


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda w: (w[0], w[0] + w[1])), max_size=6)


@given(ranges)
def test_positions_equal_walking_over_all(skipped: list[tuple[int, int]]) -> None:
    assert positions_of(0, 100, merge_ranges(skipped)).tolist() == left(skipped, 100)
    assert positions_of(37, 21, merge_ranges(skipped)).tolist() == left(skipped, 58)[37:]


@given(ranges, ranges)
def test_merging_is_idempotent_and_needs_no_order(some: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    merged = merge_ranges([*some, *more])
    assert merge_ranges([*merged, *some]) == merged == merge_ranges([*more, *some])
    assert all(a < b for a, b in merged)
    assert all(b < c for (_, b), (c, _) in itertools.pairwise(merged))


def test_far_clock_and_nothing_skipped() -> None:
    assert positions_of(10**15, 1, ((3, 10),)).tolist() == [10**15 + 7]
    assert positions_of(5, 0, ((1, 2),)).tolist() == []
    assert positions_of(10**15, 2, ()).dtype == np.int64


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="0 <= a <= b"):
        merge_ranges([(5, 3)])


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_documents_names_exactly_what_is_in_the_row(raw: Any, packing: Any) -> None:
    data = loader(raw, packing=packing)
    batch = rows(data.take(120))
    lengths = [row for part in loader(raw, packing=packing).take(120).batches for row in part.document_lengths]
    for k in range(120):
        documents = data.index.documents(k)
        found: list[int] = []
        for ref in documents:
            shard = raw.shards[f"train/{ref.source}"][int(ref.shard[-5:])]
            found += shard[ref.document][ref.start : ref.start + ref.length]
            assert ref.shard.startswith(f"tokens/train/{ref.source}/")
            assert ref.id == f"{ref.shard}#{ref.document}"
            assert ref.origin == f"{ref.shard}.txt:{ref.document}"
            assert ref.source == data.index.sources[int(batch["sources"][k])]
        assert batch["tokens"][k].tolist()[: len(found)] == found
        padding = SEQUENCE - len(found)
        assert lengths[k] == tuple(ref.length for ref in documents) + ((padding,) if padding else ())


def test_an_epoch_holds_every_token_once(raw: Any) -> None:
    for packing in ("concat", "best_fit"):
        data = loader(raw, weights={"a": 1.0}, packing=packing)
        tokens = data.index.epoch_tokens(1)
        assert data.index.epochs(tokens) == {"a": 1.0}
        batch = data.take(tokens // SEQUENCE)
        documents = raw.documents["train"]["a"]
        assert batch.total_weight == sum(map(len, documents))
        parts = rows(batch)
        inputs = parts["tokens"][parts["weights"] > 0].tolist()
        assert sorted(inputs) == sorted(token for document in documents for token in document)


def test_epochs_tell_how_often_sources_are_read(raw: Any) -> None:
    data = loader(raw, weights={"a": 0.5, "c": 0.5})
    samples = 4096
    seen = rows(data.take(samples))["sources"].bincount().tolist()
    assert seen == [2048, 2048]
    epochs = data.index.epochs(samples * SEQUENCE)
    for name, count in zip(data.index.sources, seen, strict=True):
        assert epochs[name] == count / -(-data.index.source_tokens[name] // SEQUENCE)
    (warning,) = [text for text in repetition_warnings(epochs) if "source c" in text]
    assert f"read {epochs['c']:.1f} times" in warning
    assert repetition_warnings({"a": 4.0}) == []
    assert data.index.epoch_tokens(0.5) == -(-data.index.epoch_tokens(1) // SEQUENCE // 2) * SEQUENCE


def test_stages_change_the_mixture_at_their_position(raw: Any) -> None:
    stage = StageConfig(from_tokens=100 * SEQUENCE - 3, weights={"b": 1.0})
    data = loader(raw, weights={"a": 1.0}, stages=[stage])
    sources = rows(data.take(300))["sources"]
    assert data.index.sources == ["a", "b"]
    assert sources.tolist() == [0] * 100 + [1] * 200
    assert any(f"begins at {100 * SEQUENCE}" in note for note in data.index.notes)


def test_seek_to_sample_one_billion_takes_less_than_ten_milliseconds(raw: Any) -> None:
    data = loader(raw, prefetch=False)
    data.take(8)
    times = []
    for attempt in range(10):
        begin = time.perf_counter()
        data.seek(10**9 + attempt)
        batch = data.take(8)
        times.append(time.perf_counter() - begin)
        assert batch.first_sample == 10**9 + attempt
    assert min(times) < 0.010


def test_fingerprint_names_everything_that_changes_the_samples(raw: Any, make_corpus: Callable) -> None:
    def of(raw: Any, **options: Any) -> str:
        return loader(raw, **options).index.fingerprint

    base = of(raw)
    assert of(raw) == of(raw, micro_batch=9, prefetch=False) == base
    changed = [
        of(raw, seed=2),
        of(raw, order="sequential"),
        of(raw, packing="best_fit"),
        of(raw, document_mask=False),
        of(raw, weights={"a": 1.0}),
        of(raw, weights={"a": 0.5, "b": 0.4, "c": 0.1}),
        of(raw, stages=[StageConfig(from_tokens=SEQUENCE, weights={"a": 1.0})]),
        of(make_corpus({"a": [20, 30]})),
        build_loader(DataConfig(), raw.path, sequence=8, micro_batch=4, seed=1).index.fingerprint,
    ]
    assert len({base, *changed}) == 1 + len(changed)


def test_describe_is_a_tree_with_fingerprints(raw: Any) -> None:
    data = loader(raw, weights={"a": 0.75, "b": 0.25}, stages=[StageConfig(from_tokens=1600, weights={"b": 1.0})])
    text = data.index.describe()
    assert text.isascii()
    assert data.index.fingerprint in text
    assert "from token 1,600: b 1" in text
    assert f"weight 0.75, {data.index.source_tokens['a']:,} tokens, 300 documents" in text
    assert "`-- b [" in text
    assert "concat: " in text


def test_document_mask_off_gives_one_length_and_running_positions(raw: Any) -> None:
    masked, plain = loader(raw).take(20), loader(raw, document_mask=False).take(20)
    assert masked.token_hash == plain.token_hash
    assert all(row == (SEQUENCE,) for batch in plain.batches for row in batch.document_lengths)
    assert torch.equal(rows(plain)["positions"], torch.arange(SEQUENCE).expand(20, -1))
    assert torch.equal(rows(plain)["targets"], rows(masked)["targets"])


def test_errors_of_the_background_surface_in_take_and_leave_the_clock(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [16] * 8})
    path = raw.path / "tokens/train/a/00000.bin"
    tokens = np.fromfile(path, np.uint16)
    tokens[5 * 16 + 3] = 60_000
    tokens.tofile(path)
    restate(raw.path)
    data = loader(raw, order="sequential", micro_batch=1)
    for _ in range(5):
        data.take(1)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="found token id 60000"):
            data.take(1)
        assert data.clock == 5
    data.seek(6)
    assert data.take(2).first_sample == 6
    data.close()


def test_impossible_requests_are_refused_with_the_remedy(raw: Any, make_corpus: Callable) -> None:
    data = loader(raw)
    with pytest.raises(ValueError, match="not negative"):
        data.seek(-1)
    with pytest.raises(ValueError, match="at least one sample"):
        data.take(0)
    with pytest.raises(UsageError, match="did you mean"):
        loader(raw, weights={"aa": 1.0})
    small = make_corpus({"a": [5, 6]})
    with pytest.raises(UsageError, match=r"16 is longer than the training data \(11 tokens\): set train.sequence"):
        loader(small)
    with pytest.raises(UsageError, match=r"\(0 tokens\): give more text"):
        loader(make_corpus({"a": []}))
    with pytest.raises(UsageError, match=r"\(2 tokens\): set train.sequence to at most 2, or give more text"):
        loader(make_corpus({"a": [2]}))


def test_the_share_of_the_data_that_is_seen(tiny_corpus: Path) -> None:
    loader = build_loader(DataConfig(), tiny_corpus, sequence=32, micro_batch=2, seed=1, prefetch=False)
    total = sum(loader.index.source_tokens.values())
    of = f"your {total / 1000:.1f}k tokens"
    assert seen_text(loader, total // 4, 10) == f"10 steps see 25 % of {of}; --train.epochs 1 for all"
    assert seen_text(loader, 32, 1) == f"1 step sees {100 * 32 / total:.2g} % of {of}; --train.epochs 1 for all"
    assert seen_text(loader, loader.index.epoch_tokens(1.0), 2000) == f"2,000 steps see all of {of}"
    assert seen_text(loader, 3 * total, 9) == f"9 steps see all of {of}, 3.0 times"
    notes = build_loader(
        DataConfig(weights={"notes": 1.0, "prose": 0.0}),
        tiny_corpus,
        sequence=32,
        micro_batch=2,
        seed=1,
        prefetch=False,
    )
    assert seen_text(notes, notes.index.epoch_tokens(0.5), 9).startswith("9 steps see 50 % of ")
