"""All-reduces written out equal the library's, and send as many bytes in as many steps as their formulas say."""

from math import floor, log2

import pytest
import torch

from benchmarks.training.all_reduces import Message, bytes_sent, double_tree, ring
from hornbook.parallel.traffic.traffic import sent_bytes
from tests.ranks import RankServer


def num_steps(messages: list[Message]) -> int:
    """Return the number of steps in which `messages` are sent."""
    return max((message.step for message in messages), default=-1) + 1


def carry_out(messages: list[Message], tensors: list[torch.Tensor]) -> None:
    """Every message of a step at once, between tensors of one process."""
    for step in range(num_steps(messages)):
        together = [message for message in messages if message.step == step]
        parts = [tensors[each.source][each.start : each.stop].clone() for each in together]
        for message, part in zip(together, parts, strict=True):
            target = tensors[message.target][message.start : message.stop]
            target.add_(part) if message.adds else target.copy_(part)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 13, 16])
@pytest.mark.parametrize("size", [1, 48, 101])
def test_every_schedule_sums_on_every_number_of_ranks(ranks: int, size: int) -> None:
    for messages in (ring(ranks, size), double_tree(ranks, size), double_tree(ranks, size, parts=5)):
        tensors = [torch.arange(size).double() * 10 + rank for rank in range(ranks)]
        total = sum(tensors, torch.zeros(size).double())
        carry_out(messages, tensors)
        assert all(torch.equal(each, total) for each in tensors)
        assert messages == sorted(messages)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 13])
def test_a_ring_sends_what_is_counted_for_an_all_reduce(ranks: int) -> None:
    size = 6 * ranks
    messages = ring(ranks, size)
    assert num_steps(messages) == 2 * (ranks - 1)
    expected = dict.fromkeys(range(ranks), sent_bytes("all-reduce", 4 * size, ranks))
    assert dict(bytes_sent(messages, 4)) == pytest.approx(expected)
    assert all((message.source + 1) % ranks == message.target for message in messages)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 13])
def test_no_rank_of_the_double_tree_sends_more_than_twice_the_tensor(ranks: int, parts: int) -> None:
    size = 48
    messages = double_tree(ranks, size, parts)
    assert num_steps(messages) == 2 * floor(log2(ranks)) + parts - 1
    sent = bytes_sent(messages, 4)
    assert max(sent.values()) <= 2 * 4 * size
    assert sum(sent.values()) == pytest.approx(ranks * sent_bytes("all-reduce", 4 * size, ranks))


@pytest.mark.parametrize("ranks", [2, 4])
def test_on_ranks_they_equal_the_library(run_ranks: RankServer, ranks: int) -> None:
    for rank in run_ranks("tests/parallel/traffic/communicating.py:written_out", ranks, [1, 64, 1001]):
        for found in rank:
            assert found["equal"], found
            assert found["apart"] < 2e-6
            assert found["sent"] == found["told"]
