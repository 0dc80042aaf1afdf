"""Sums in the fixed tree: the same bits for any power of two of ranks, on real ranks and by a slow reference."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.parallel.gradients.exact import (
    NARROWEST,
    TreeSum,
    check_shards,
    exact_norm,
    fill_neutral_,
    row_squares,
    tree_sum_,
)
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import World
from tests.parallel.cases import SIZES, as_hex, cut, leaves, whole_shard
from tests.ranks import RankServer

CASES = "tests/parallel/cases.py"
HERE = World(torch.device("cpu"))


def reference(parts: Sequence[Tensor]) -> Tensor:
    """The tree as it is defined: split at the largest power of two below the number of leaves."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << ((len(parts) - 1).bit_length() - 1)
    return reference(parts[:half]) + reference(parts[half:])


def in_order(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@given(st.integers(1, 40), st.integers(0, 2**32))
def test_one_rank_gives_the_tree_of_the_definition(count: int, seed: int) -> None:
    drawn = leaves(count, SIZES, seed)
    expected = [as_hex(reference(column)) for column in zip(*drawn, strict=True)]
    tree = TreeSum()
    for leaf in drawn:
        tree.push([tensor.clone() for tensor in leaf])
    assert [as_hex(total) for total in tree.total()] == expected
    again = [[tensor.clone() for tensor in leaf] for leaf in drawn]
    assert [as_hex(tree_sum_(column)) for column in zip(*again, strict=True)] == expected


def test_the_order_matters_for_the_leaves_drawn_here() -> None:
    """Else the equalities in this file would prove nothing."""
    drawn = [leaf[-1] for leaf in leaves(8, SIZES, 3)]
    assert as_hex(in_order(drawn)) != as_hex(reference(drawn))
    assert as_hex(reference(drawn[1:] + drawn[:1])) != as_hex(reference(drawn))


@given(st.integers(1, 5000))
def test_few_sums_are_held_at_a_time(count: int) -> None:
    tree = TreeSum()
    for _ in range(count):
        tree.push([torch.zeros(())])
        assert len(tree._nodes) <= count.bit_length()
    tree.total()
    assert tree._nodes == []


@given(st.integers(0, 2**32))
def test_what_is_left_out_changes_no_bit(seed: int) -> None:
    values = leaves(1, (1000,), seed)[0][0]
    nothing = values.clone()
    fill_neutral_([nothing])
    assert as_hex(values + nothing) == as_hex(values)
    assert as_hex(nothing + nothing) == as_hex(nothing)
    assert as_hex(values + torch.zeros(1000)) != as_hex(values)


COUNTS = list(range(1, 25))


@pytest.mark.parametrize("world", [2, 4, 8])
def test_any_number_of_ranks_gives_the_bits_of_one(run_ranks: RankServer, world: int) -> None:
    """1 to 24 microbatches, those that the ranks do not divide too; every rank has all the sums."""
    (alone,) = run_ranks(f"{CASES}:sum_leaves", 1, COUNTS, 11)
    assert alone == [
        [as_hex(reference(column)) for column in zip(*leaves(count, SIZES, 11), strict=True)] for count in COUNTS
    ]
    for rank, sums in enumerate(run_ranks(f"{CASES}:sum_leaves", world, COUNTS, 11)):
        for count, expected, found in zip(COUNTS, alone, sums, strict=True):
            assert found == expected, (rank, count)


@settings(max_examples=4)
@given(st.integers(0, 2**32))
def test_two_and_four_ranks_give_the_bits_of_one_for_any_values(run_ranks: RankServer, seed: int) -> None:
    counts = [4, 6, 12, 17]
    (alone,) = run_ranks(f"{CASES}:sum_leaves", 1, counts, seed)
    for world in (2, 4):
        assert run_ranks(f"{CASES}:sum_leaves", world, counts, seed) == [alone] * world


def test_an_ordinary_all_reduce_has_other_bits(run_ranks: RankServer) -> None:
    sums = run_ranks(f"{CASES}:uneven_order", 4)
    drawn = [leaf[0] for leaf in leaves(4, (1000,), 3)]
    torch.testing.assert_close(torch.tensor(sums[0]), reference(drawn))
    assert as_hex(torch.tensor(sums[0])) != as_hex(reference(drawn))


@pytest.mark.parametrize(("world", "replicas"), [(2, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("count", [8, 5])
def test_fully_shard_sums_in_the_tree(run_ranks: RankServer, world: int, replicas: int, count: int) -> None:
    (alone,) = run_ranks(f"{CASES}:fsdp_gradients", 1, count, 1)
    found = run_ranks(f"{CASES}:fsdp_gradients", world, count, replicas)
    shards = world // replicas
    for replica in range(replicas):
        group = found[replica * shards : (replica + 1) * shards]
        assert {name: [value for rank in group for value in rank[name]] for name in alone} == alone


SHAPES = [[33, 7], [5], [1, 300], [64, 16], [3, 2, 5], [129]]


@pytest.mark.parametrize(("world", "replicas"), [(2, 1), (3, 1), (4, 1), (4, 2), (8, 2)])
def test_the_norm_does_not_depend_on_the_cut(run_ranks: RankServer, world: int, replicas: int) -> None:
    (alone,) = run_ranks(f"{CASES}:norm", 1, SHAPES, 1, 5)
    assert run_ranks(f"{CASES}:norm", world, SHAPES, replicas, 5) == [alone] * world


@given(st.integers(0, 2**32))
def test_the_norm_is_the_norm(seed: int) -> None:
    shards = cut(HERE, SHAPES, 1, seed)
    gradients = [shard.tensor.grad.double().flatten() for shard in shards.values() if shard.tensor.grad is not None]
    expected = torch.cat(gradients).norm()
    found = exact_norm(shards, HERE)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-7, atol=0)


def one_by_one(sums: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    return torch.cat([sums(row[None]) for row in rows])


def test_the_sum_of_a_row_does_not_depend_on_threads_or_neighbours() -> None:
    """torch's own sum does: a row that is alone is cut among threads."""
    rows = torch.randn(60, 40_000, generator=torch.Generator().manual_seed(7))
    expected, before = row_squares(rows), torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(row_squares(rows), expected)
            assert torch.equal(one_by_one(row_squares, rows), expected)
        squares = rows.double().square()
        assert not torch.equal(one_by_one(lambda row: row.sum(1), squares), squares.sum(1))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_a_gradient_that_is_not_sound_shows_in_the_norm(value: float) -> None:
    shards = cut(HERE, SHAPES, 1, 5)
    gradient = shards["3"].tensor.grad
    assert gradient is not None
    gradient[60, 3] = value
    assert not torch.isfinite(exact_norm(shards, HERE) ** 2)


def shard_of(shape: tuple[int, ...], first: int, last: int) -> ParameterShard:
    tensor = nn.Parameter(torch.empty(last - first, *shape[1:], device="meta"))
    return ParameterShard(tensor, shape, (first, *(0 for _ in shape[1:])))


def test_cuts_fall_between_vectors() -> None:
    check_shards({"whole": whole_shard(nn.Parameter(torch.zeros(7, 3)))})
    check_shards({"matrix": shard_of((10, 16), 3, 7), "vector": shard_of((64,), 16, 48), "none": shard_of((7,), 7, 7)})
    check_shards({"last": shard_of((70,), 64, 70), "few": shard_of((3,), 0, 2), "one": shard_of((3,), 2, 3)})
    for bad in (shard_of((64,), 8, 16), shard_of((64,), 0, 8), shard_of((10, 24), 1, 10)):
        with pytest.raises(UsageError, match=r"of blocks.0.norm1.weight \[.*--parallel.shard none"):
            check_shards({"blocks.0.norm1.weight": bad})


def adamw(weight: Tensor, gradient: Tensor) -> Tensor:
    parameter = nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.1, fused=True)
    for factor in (1.0, 0.3, 0.07):
        parameter.grad = gradient * factor
        optimizer.step()
    return parameter.detach()


@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 2**32))
def test_adamw_of_parts_that_are_cut_so_has_the_bits_of_the_whole(size: int, first: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, gradient = torch.randn(2, size, generator=generator)
    first = min(first, size)
    first = first if first >= size - size % NARROWEST else first // 16 * 16
    check_shards({"first": shard_of((size,), 0, first), "rest": shard_of((size,), first, size)})
    parts = [
        adamw(weight[rows], gradient[rows]) for rows in (slice(0, first), slice(first, size)) if weight[rows].numel()
    ]
    assert torch.equal(torch.cat(parts), adamw(weight, gradient))
