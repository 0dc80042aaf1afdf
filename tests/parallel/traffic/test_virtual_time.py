"""Data-parallel schemes in virtual time: laws of queues, equalities between schemes, bounds of staleness."""

import math
from typing import get_args

import numpy as np
import pytest

from hornbook.parallel.traffic.virtual_time import (
    FEATURES,
    Course,
    Law,
    Workers,
    in_rounds,
    ring_weights,
    sums,
    through_server,
    with_neighbours,
)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_a_synchronous_step_takes_the_longest_of_exponential_times(count: int) -> None:
    """The mean of the longest of N exponential times is the harmonic number H_N."""
    course = in_rounds(Workers(count), 1, 4000 * count, 0.1, 0.0)
    assert count / course.rate == pytest.approx(sum(1 / each for each in range(1, count + 1)), rel=0.03)


@pytest.mark.parametrize("law", get_args(Law))
def test_the_bound_zero_is_bulk_synchronous(law: Law) -> None:
    server = through_server(Workers(4, law), 0, 400, 0.5, 0.0)
    rounds = in_rounds(Workers(4, law), 1, 400, 0.5, 0.0)
    assert server.times == rounds.times
    assert server.losses == pytest.approx(rounds.losses, rel=1e-12)
    assert set(server.staleness) == {0}


def test_synchronous_training_is_one_process_with_the_whole_batch() -> None:
    course, workers = in_rounds(Workers(4), 1, 80, 0.5, 0.0), Workers(4)
    weights = np.zeros(FEATURES)
    for loss in course.losses[1:]:
        weights = weights - 0.5 * np.mean([workers.gradient(each, weights) for each in range(4)], axis=0)
        assert loss == pytest.approx(workers.loss(weights), rel=1e-12)


def test_one_worker_is_plain_training_under_every_scheme() -> None:
    plain = in_rounds(Workers(1), 1, 50, 0.5, 0.0)
    for course in (
        through_server(Workers(1), math.inf, 50, 0.5, 0.0),
        with_neighbours(Workers(1), 50, 0.5, 0.0),
    ):
        assert course.times == plain.times
        assert course.losses == pytest.approx(plain.losses, rel=1e-12)
    assert in_rounds(Workers(1), 5, 50, 0.5, 0.0).losses == pytest.approx(plain.losses[::5], rel=1e-12)


def test_asynchronous_updates_come_at_the_sum_of_all_rates() -> None:
    assert through_server(Workers(8), math.inf, 16_000, 0.05, 0.0).rate == pytest.approx(8, rel=0.02)
    assert through_server(Workers(8, slow=4), math.inf, 16_000, 0.05, 0.0).rate == pytest.approx(7.25, rel=0.02)


@pytest.mark.parametrize("bound", [1, 4, 8])
def test_a_bound_does_not_help_against_a_worker_that_is_always_slow(bound: int) -> None:
    """The others take its pace: eight workers, a quarter of a gradient each."""
    assert through_server(Workers(8, slow=4), bound, 16_000, 0.05, 0.0).rate == pytest.approx(2, rel=0.04)


def _reads_under(bound: int, course: Course, count: int) -> None:
    """No gradient starts while its worker is more than the bound ahead of the slowest one."""
    ends = [[each.end for each in course.works if each.worker == worker] for worker in range(count)]
    horizon = min(own[-1] for own in ends)
    for worker in range(count):
        for clock, work in enumerate(each for each in course.works if each.worker == worker):
            if work.start <= horizon:
                slowest = min(sum(end <= work.start for end in own) for own in ends)
                assert clock - slowest <= bound


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_worker_is_further_ahead_than_the_bound(bound: int) -> None:
    course = through_server(Workers(6, slow=2), bound, 600, 0.1, 0.0)
    _reads_under(bound, course, 6)
    if bound:
        with pytest.raises(AssertionError):
            _reads_under(bound - 1, course, 6)


@pytest.mark.parametrize(("count", "second"), [(4, 0.333), (8, 0.805), (16, 0.949)])
def test_weights_of_a_ring_contract_as_their_second_eigenvalue(count: int, second: float) -> None:
    """1/3 + 2/3 cos(2 pi / n)."""
    mix = ring_weights(count)
    assert mix.sum(axis=0) == pytest.approx(1)
    assert mix.sum(axis=1) == pytest.approx(1)
    assert sorted(np.abs(np.linalg.eigvalsh(mix)))[-2] == pytest.approx(second, abs=1e-3)


@pytest.mark.parametrize("count", [2, 3])
def test_few_neighbours_are_all_workers(count: int) -> None:
    assert ring_weights(count) == pytest.approx(1 / count)


def test_a_servers_link_carries_one_copy_at_a_time() -> None:
    """Equal times: N gradients arrive one after the other, and N copies leave."""
    course = through_server(Workers(4, "constant"), 0, 40, 0.1, 0.25)
    assert course.works[3].resumed == pytest.approx(1 + 4 * 0.25 + 4 * 0.25)
    assert sums(4)["server"].longest == 8
    assert in_rounds(Workers(4, "constant"), 1, 4, 0.1, 0.25 * 8).works[0].resumed == pytest.approx(3)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 13])
def test_a_ring_sends_what_its_steps_send(count: int) -> None:
    """Written out: N - 1 steps that add a part to the neighbour's, N - 1 that copy a finished part."""
    values = np.random.default_rng(0).normal(size=(count, count))  # one row a worker, one column a part
    held, sent, rounds = values.copy(), np.zeros(count), 0
    for add in (True, False):
        for step in range(count - 1):
            before = held.copy()
            for worker in range(count):
                part = (worker - step + (0 if add else 1)) % count
                target = (worker + 1) % count
                held[target, part] = before[worker, part] + (before[target, part] if add else 0)
                sent[worker] += 1 / count
            rounds += 1
    assert held == pytest.approx(np.broadcast_to(values.sum(axis=0), (count, count)))
    ring = sums(count)["ring"]
    assert rounds == ring.rounds
    assert sent == pytest.approx(ring.sent)
    assert ring.longest == pytest.approx(2 * (count - 1) / count)
