"""Difficulty rises, every row comes once in each epoch, and nothing but the position decides."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hornbook.data.config.data import Curriculum, DataConfig, StageConfig
from hornbook.data.corpus import open_corpus
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.order.curriculum import competence, draw_positions, paced_order, row_difficulty
from hornbook.data.order.mixture import Stage
from hornbook.data.order.sampler import Sampler
from hornbook.errors import IntegrityError, UsageError
from hornbook.optim.config.batch_schedule import LinearRamp
from hornbook.text.refinery.pipeline.decide import KEPT

SEQUENCE = 16


@pytest.fixture(scope="module")
def raw(make_corpus: Callable) -> Any:
    rng = np.random.default_rng(5)
    lengths = {name: rng.integers(2, 60, count).tolist() for name, count in (("a", 300), ("b", 80))}
    return make_corpus(lengths, shards=3)


def loader(raw: Any, *, micro_batch: Any = 4, **config: Any) -> Loader:
    return build_loader(DataConfig(**config), raw.path, sequence=SEQUENCE, micro_batch=micro_batch, seed=1)


def measured(raw: Any) -> None:
    """What `prepare` would have measured: a score of each document, in files of another order than the shards."""
    origins = [
        (source, f"tokens/train/{source}/{s:05d}.txt:{k}") for source in "ab" for s in range(3) for k in range(99)
    ]
    rows = [{"source": s, "origin": o, "reason": KEPT, "score.value": float(len(o) + hash_of(o))} for s, o in origins]
    (raw.path / "signals").mkdir(exist_ok=True)
    for part in range(2):
        pq.write_table(pa.Table.from_pylist(rows[part::2][::-1]), raw.path / "signals" / f"{part:05d}.parquet")


def hash_of(origin: str) -> int:
    return sum(map(ord, origin)) * 7919 % 1000


def test_competence_is_that_of_the_paper() -> None:
    half = competence(Curriculum(over_tokens=100, start=0.01), np.array([0.0, 50.0, 100.0, 400.0]))
    assert half == pytest.approx([0.01, np.sqrt(0.5 * (1 - 0.01**2) + 0.01**2), 1, 1])
    line = competence(Curriculum(over_tokens=100, start=0.2, root=1), np.array([25.0]))
    assert line == pytest.approx([0.4])


def test_rows_are_drawn_from_the_easiest_share_and_each_once() -> None:
    difficulty = np.random.default_rng(0).permutation(500).astype(float)
    shares = competence(Curriculum(over_tokens=400, start=0.02), np.arange(500.0))
    order = paced_order(difficulty, shares, 7)
    assert sorted(order.tolist()) == list(range(500))
    assert (difficulty[order] < np.ceil(500 * shares)).all()
    assert not np.array_equal(order, np.argsort(difficulty)), "within the share rows are drawn at random"
    assert not np.array_equal(order, paced_order(difficulty, shares, 8))
    late = paced_order(difficulty, np.full(500, 0.001), 7)
    assert np.array_equal(late, np.argsort(difficulty)), "where all are read the next is the easiest"


def test_positions_of_draws_are_those_of_the_sampler() -> None:
    stages = [Stage.build(0, [0.5, 0.1]), Stage.build(333, [0.0, 1.0]), Stage.build(5000, [0.6, 0.2])]
    sources = Sampler(["a", "b"], [50, 9], stages, seed=1).locate(np.arange(9000))[0]
    for source in (0, 1):
        assert np.array_equal(draw_positions(stages, source, 9000, 9000), np.flatnonzero(sources == source))
        assert np.array_equal(draw_positions(stages, source, 9000, 99), np.flatnonzero(sources == source)[:99])


def test_a_row_is_as_hard_as_its_tokens_documents() -> None:
    ends, values = np.array([3, 4, 10]), np.array([1.0, 10.0, 4.0])
    segments = np.array([0, 1, 3]), np.array([2, 0, 8]), np.array([3, 2, 2])
    assert row_difficulty(values, ends, segments) == pytest.approx([(1 + 10 + 4) / 3, (1 + 1 + 4 + 4) / 4])


@pytest.mark.parametrize("by", ["length", "score.value"])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_difficulty_rises_and_each_epoch_has_all_rows(raw: Any, by: str, packing: Any) -> None:
    measured(raw)
    config = {"packing": packing, "curriculum": Curriculum(by=by, over_tokens=400 * SEQUENCE)}
    index = loader(raw, **config).index
    sources, rows, epochs = index.sampler.locate(np.arange(3000))
    lengths = np.diff([0, *np.cumsum([len(d) for d in raw.documents["train"]["a"]])])
    origins = [f"tokens/train/a/{shard:05d}.txt:{k}" for shard in range(3) for k in range(100)]
    known = [float(len(o) + hash_of(o)) if int(o.split(":")[1]) < 99 else None for o in origins]
    for source in (0, 1):
        for epoch in (0, 1):
            mine = rows[(sources == source) & (epochs == epoch)]
            assert np.array_equal(np.sort(mine), np.arange(index.plans[source].rows))
    values = (
        lengths.astype(float)
        if by == "length"
        else np.array([max(filter(None, known)) if v is None else v for v in known])
    )
    by_hand = row_difficulty(values, np.cumsum(lengths), index.plans[0].segments(np.arange(index.plans[0].rows)))
    first = by_hand[rows[(sources == 0) & (epochs == 0)]]
    again = by_hand[rows[(sources == 0) & (epochs == 1)]]
    quarters = [part.mean() for part in np.array_split(first, 4)]
    assert quarters == sorted(quarters)
    spread = by_hand.std() / np.sqrt(len(by_hand) / 4)
    assert quarters[0] < by_hand.mean() - 4 * spread
    assert abs(np.array_split(again, 4)[0].mean() - by_hand.mean()) < 4 * spread, "later epochs are shuffled"
    lowest = loader(raw, packing=packing, curriculum=Curriculum(by=by, over_tokens=400 * SEQUENCE, hardest="lowest"))
    turned = lowest.index.sampler.locate(np.arange(100))
    assert by_hand[turned[1][turned[0] == 0]].mean() > by_hand.mean()


def test_resume_ranks_and_skipped_ranges_change_nothing(raw: Any) -> None:
    config: dict[str, Any] = {
        "curriculum": Curriculum(over_tokens=3000, start=0.05),
        "sequence_ramp": LinearRamp(start_tokens=4, over_tokens=2000),
        "stages": [StageConfig(from_tokens=1600, weights={"a": 0.2, "b": 0.8})],
    }
    whole = loader(raw, **config)
    batches = [whole.take(8) for _ in range(40)]
    for start in (39, 0, 17):
        other = loader(raw, micro_batch=3, **config)
        other.seek(8 * start)
        assert other.take(8, rank=0, world=1).token_hash == batches[start].token_hash
    jump = loader(raw, **config)
    jump.skip([(80, 160)])
    jump.seek(80)
    assert jump.take(8).token_hash == batches[20].token_hash
    plain = loader(raw, stages=config["stages"]).index
    assert plain.fingerprint != whole.index.fingerprint
    other = loader(raw, **config | {"sequence_ramp": LinearRamp(start_tokens=8, over_tokens=2000)}).index
    assert other.fingerprint != whole.index.fingerprint


@pytest.mark.parametrize("mask", [True, False])
def test_attention_reaches_farther_by_and_by_and_tokens_stay(raw: Any, mask: bool) -> None:
    ramp: dict[str, Any] = {"sequence_ramp": LinearRamp(start_tokens=4, over_tokens=1600), "document_mask": mask}
    cut, whole = loader(raw, micro_batch=8, **ramp), loader(raw, micro_batch=8, document_mask=mask)
    seen = []
    for step in range(15):
        ours, theirs = cut.take(8), whole.take(8)
        assert (ours.token_hash, ours.total_weight) == (theirs.token_hash, theirs.total_weight)
        assert (ours.batches[0].targets == theirs.batches[0].targets).all()
        for row, (lengths, longer) in enumerate(
            zip(ours.batches[0].document_lengths, theirs.batches[0].document_lengths, strict=True)
        ):
            reach = 4 + 4 * sum((8 * step + row) * SEQUENCE >= first for first in (534, 1067, 1600))  # thirds of 1600
            expected = [min(reach, size - k) for size in longer for k in range(0, size, reach)]
            assert list(lengths) == expected
            assert ours.batches[0].positions[row].tolist() == [k for size in expected for k in range(size)]
        seen.append(max(size for row in ours.batches[0].document_lengths for size in row))
    assert seen[0] == 4
    assert seen[-1] == SEQUENCE
    assert cut.index.refs(np.arange(100, 108)).reach is None, "behind the ramp it costs nothing"


def test_measurements_are_part_of_the_data_lock(raw: Any) -> None:
    """A resume after the text was measured anew would read its rows in another order."""
    measured(raw)
    config = DataConfig(curriculum=Curriculum(by="score.value", over_tokens=100))
    before = open_corpus(config, raw.path).lock()
    assert len(before["shards"]) == len(open_corpus(DataConfig(), raw.path).lock()["shards"]) + 2
    assert open_corpus(config, raw.path).lock() == before
    path = raw.path / "signals" / "00001.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("score.value")
    changed = table.set_column(place, "score.value", pc.call_function("add", [table["score.value"], pa.scalar(1.0)]))
    pq.write_table(changed, path)
    assert open_corpus(config, raw.path).lock()["shards"].items() ^ before["shards"].items()
    path.write_bytes(b"PAR1")
    with pytest.raises(IntegrityError, match=r"00001.parquet cannot be read"):
        open_corpus(config, raw.path)


def test_a_long_pace_and_unknown_columns_are_told(raw: Any) -> None:
    measured(raw)
    notes = loader(raw, curriculum=Curriculum(over_tokens=10**9)).index.notes
    assert any("read once before" in note for note in notes)
    with pytest.raises(UsageError, match=r"no column 'score.valeu': take one of length, score\.value"):
        loader(raw, curriculum=Curriculum(by="score.valeu", over_tokens=100))
    with pytest.raises(UsageError, match="is of the type string"):
        loader(raw, curriculum=Curriculum(by="origin", over_tokens=100))
