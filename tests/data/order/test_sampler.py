from typing import Any

import numpy as np
import pytest

from hornbook.data.order.mixture import Stage
from hornbook.data.order.sampler import Sampler

NAMES, SIZES = ["a", "b", "c"], [37, 1, 400]


def stages() -> list[Stage]:
    return [
        Stage.build(0, [0.5, 0.1, 0.4]),
        Stage.build(333, [0.0, 0.3, 0.7]),
        Stage.build(5000, [0.6, 0.2, 0.2]),
    ]


def sampler(kind: Any = "shuffled", seed: int = 3) -> Sampler:
    return Sampler(NAMES, SIZES, stages(), seed=seed, kind=kind)


def walk(count: int) -> list[tuple[int, int, int]]:
    """(source, k-th draw, epoch) of each position, counting draws one by one."""
    drawn, result = [0, 0, 0], []
    plan = stages()
    for position in range(count):
        stage = max((s for s in plan if s.first <= position), key=lambda s: s.first)
        source = int(stage.pattern[(position - stage.first) % 4096])
        result.append((source, drawn[source], drawn[source] // SIZES[source]))
        drawn[source] += 1
    return result


@pytest.mark.parametrize("kind", ["shuffled", "sequential", "replacement"])
def test_sources_and_epochs_follow_from_counting_draws(kind: Any) -> None:
    sources, rows, epochs = sampler(kind).locate(np.arange(12_000))
    walked = walk(12_000)
    assert sources.tolist() == [source for source, _, _ in walked]
    assert epochs.tolist() == [epoch for _, _, epoch in walked]
    assert (rows >= 0).all()
    assert (rows < np.array(SIZES)[sources]).all()
    if kind == "sequential":
        assert rows.tolist() == [draw % SIZES[source] for source, draw, _ in walked]


def test_every_epoch_of_every_source_is_a_permutation_across_stages() -> None:
    sources, rows, epochs = sampler().locate(np.arange(12_000))
    seen = []
    for source, size in enumerate(SIZES):
        for epoch in range(int(epochs[sources == source].max())):  # the last epoch is not complete
            drawn = rows[(sources == source) & (epochs == epoch)]
            assert np.array_equal(np.sort(drawn), np.arange(size))
            if source == 0:
                seen.append(tuple(drawn.tolist()))
    assert len(seen) > 20
    assert len(set(seen)) == len(seen), "two epochs in the same order"


def test_replacement_draws_repeat_and_cover() -> None:
    sources, rows, _ = sampler("replacement").locate(np.arange(12_000))
    drawn = rows[sources == 2]
    first = drawn[:400]
    assert len(set(first.tolist())) < 300, "independent draws collide: about 253 of 400 are distinct"
    assert len(set(drawn.tolist())) == 400


def test_any_position_alone_equals_the_walk_and_seed_matters() -> None:
    whole = sampler().locate(np.arange(6000))
    for position in (0, 332, 333, 4999, 5000, 5999):
        assert [int(part[0]) for part in sampler().locate(np.array([position]))] == [int(p[position]) for p in whole]
    assert not np.array_equal(sampler(seed=4).locate(np.arange(6000))[1], whole[1])


def test_order_inside_a_source_does_not_depend_on_the_others() -> None:
    alone = Sampler(["c"], [400], [Stage.build(0, [1.0])], seed=3).locate(np.arange(400))[1]
    sources, rows, _ = sampler().locate(np.arange(3000))
    assert rows[sources == 2][:400].tolist() == alone.tolist()


def test_draws_count_like_locate() -> None:
    sources, _, _ = sampler().locate(np.arange(11_000))
    for samples in (0, 1, 333, 334, 5000, 10_999):
        assert sampler().draws(samples).tolist() == np.bincount(sources[:samples], minlength=3).tolist()


def test_far_positions_are_exact() -> None:
    far = 10**15
    sources, rows, epochs = sampler("sequential").locate(np.array([far]))
    draws = sampler().draws(far)
    assert epochs[0] == draws[sources[0]] // SIZES[sources[0]]
    assert rows[0] == draws[sources[0]] % SIZES[sources[0]]
