import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hornbook.data.config.data import DataConfig, StageConfig
from hornbook.data.order.mixture import BLOCK, Stage, block_counts, block_pattern, build_stages, cap_epochs
from hornbook.data.order.sampler import Sampler
from hornbook.errors import UsageError

weight_lists = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=7)


@given(weight_lists)
def test_counts_realise_the_weights_to_one_in_4096(weights: list[float]) -> None:
    counts = block_counts(weights)
    assert counts.sum() == BLOCK
    assert (counts > 0).all()
    shares = np.array(weights) / sum(weights)
    assert (np.abs(counts / BLOCK - shares) <= 1 / BLOCK + 1e-12).all()


def test_simple_weights_are_exact_and_tiny_ones_are_not_lost() -> None:
    assert block_counts([0.5, 0.25, 0.25]).tolist() == [2048, 1024, 1024]
    assert block_counts([1.0, 0.0, 1e-9]).tolist() == [4095, 0, 1]


@given(weight_lists)
def test_every_prefix_of_a_block_is_within_one_draw_of_the_shares(weights: list[float]) -> None:
    counts = block_counts(weights)
    pattern = block_pattern(counts)
    assert np.array_equal(np.bincount(pattern, minlength=len(counts)), counts)
    drawn = np.cumsum(pattern[:, None] == np.arange(len(counts)), axis=0)
    due = np.arange(1, BLOCK + 1)[:, None] * counts / BLOCK
    bound = 1 - 1 / (2 * len(counts) - 2) if len(counts) > 1 else 0
    assert np.abs(drawn - due).max() <= bound + 1e-9


def test_draws_counts_like_walking() -> None:
    stage = Stage.build(0, [0.2, 0.0, 0.5, 0.3])
    walked = np.zeros(4, int)
    for place in range(3 * BLOCK):
        if place in (0, 1, 17, BLOCK - 1, BLOCK, 2 * BLOCK + 5):
            assert stage.draws(place).tolist() == walked.tolist()
        assert (
            stage.ranks[place % BLOCK]
            == walked[stage.pattern[place % BLOCK]] % stage.counts[stage.pattern[place % BLOCK]]
        )
        walked[stage.pattern[place % BLOCK]] += 1


def test_default_weights_are_sizes_and_empty_sources_are_left_out() -> None:
    names, stages, notes = build_stages(DataConfig(), {"a": 3000, "b": 1000, "none": 0}, 100)
    assert names == ["a", "b"]
    assert stages[0].counts.tolist() == [3072, 1024]
    assert notes == []


def test_weight_zero_excludes_and_missing_names_are_noted() -> None:
    names, stages, notes = build_stages(DataConfig(weights={"a": 2.0, "b": 0.0}), {"a": 10, "b": 10, "c": 10}, 2)
    assert names == ["a"]
    assert stages[0].weights == (1.0,)
    assert len(notes) == 1
    assert "not used: c" in notes[0]


def test_stages_begin_at_whole_samples_and_keep_all_their_sources() -> None:
    config = DataConfig(
        weights={"a": 1.0, "b": 0.0},
        stages=[StageConfig(from_tokens=1000, weights={"a": 0.5, "b": 0.5}), StageConfig(from_tokens=2048)],
    )
    names, stages, notes = build_stages(config, {"a": 300, "b": 100}, 256)
    assert names == ["a", "b"]
    assert [stage.first for stage in stages] == [0, 4, 8]
    assert [stage.counts.tolist() for stage in stages] == [[4096, 0], [2048, 2048], [3072, 1024]]
    assert len(notes) == 1
    assert "begins at 1024" in notes[0]


def test_a_stage_at_zero_replaces_the_weights() -> None:
    config = DataConfig(stages=[StageConfig(from_tokens=0, weights={"a": 1.0, "b": 3.0})])
    _, stages, _ = build_stages(config, {"a": 300, "b": 100}, 256)
    assert [stage.first for stage in stages] == [0]
    assert stages[0].counts.tolist() == [1024, 3072]


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"wiki": 1.0}, "did you mean 'wikipedia'"),
        ({"zzz": 1.0}, "the data has wikipedia, code"),
        ({"code": -1.0}, "not negative"),
        ({"code": 0.0}, "all weights are 0"),
        ({"empty": 1.0}, "no training tokens"),
    ],
)
def test_bad_weights_are_named(weights: dict[str, float], text: str) -> None:
    sizes = {"wikipedia": 10, "code": 10, "empty": 0}
    with pytest.raises(UsageError, match=text):
        build_stages(DataConfig(weights=weights), sizes, 2)
    with pytest.raises(UsageError, match=r"data.stages\[0\].*" + text):
        build_stages(DataConfig(stages=[StageConfig(from_tokens=8, weights=weights)]), sizes, 2)


def test_a_higher_temperature_lifts_small_sources() -> None:
    sizes = {"large": 10_000, "small": 100}
    by_size, flat = (build_stages(DataConfig(temperature=t), sizes, 10)[1][0].weights for t in (1.0, 2.0))
    assert by_size == pytest.approx((100 / 101, 1 / 101))
    assert flat == pytest.approx((10 / 11, 1 / 11))
    assert build_stages(DataConfig(weights={"small": 1.0}, temperature=2.0), sizes, 10)[0] == ["small"]


few_weights = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=4)
"""Each source that is used up makes another pattern, which takes long."""


@example([0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02], [3000, 7, 100, 1, 900, 40, 500], 1.5, 800)
@given(few_weights, st.lists(st.integers(1, 3000), min_size=4, max_size=4), st.floats(0.3, 4), st.integers(1, 9000))
def test_no_source_is_drawn_beyond_its_cap_until_all_are_used_up(
    weights: list[float], sizes: list[int], epochs: float, second: int
) -> None:
    rows = sizes[: len(weights)]
    stages = [Stage.build(0, weights), Stage.build(second, weights[::-1])]
    capped, end = cap_epochs(stages, rows, epochs)
    limits = np.ceil(np.round(np.array(rows) * epochs, 6)).astype(int)
    assert end is not None
    assert end == limits.sum()
    sampler = Sampler([str(n) for n in range(len(rows))], rows, capped, seed=1)
    assert sampler.draws(end).tolist() == limits.tolist()
    assert [stage.first for stage in capped] == sorted({stage.first for stage in capped})
    sources = sampler.locate(np.arange(min(end, 20_000)))[0]
    assert (np.bincount(sources, minlength=len(rows)) <= limits).all()
    shares = [np.array(weights), np.array(weights[::-1])]
    for stage in (stage for stage in capped if stage.first < end):
        alive = sampler.draws(stage.first) < limits
        share = np.where(alive, shares[int(stage.first >= second)], 0)
        assert stage.weights == pytest.approx(share / share.sum())


def test_a_cap_is_exact_and_a_source_without_rows_is_used_up():
    weights, rows = [1.0, 1.0], [10, 0]
    capped, end = cap_epochs([Stage.build(0, weights)], rows, 1.1)
    assert end == 11  # 10 * 1.1 is 11.000000000000002 in floating point
    assert capped[0].weights == (1.0, 0.0)
