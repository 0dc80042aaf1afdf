"""Attention of a few queries to what a cache holds, against the formula; what is written to it, against indexing."""

import pytest
import torch
from torch import Tensor

from hornbook.model.attention.attend import attend
from hornbook.model.attention.key_tables import KeyTables
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiled_attention import Scoring
from hornbook.model.cpu.cached import attend_to_cached, takes, write_columns
from tests.model.attention.reference import reference_attention

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
ROWS, HEADS, KV_HEADS, COLUMNS = 5, 6, 2, 130


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(dtype)


def intervals(queries: int) -> tuple[Tensor, Tensor]:
    """Each row's own: all, one key, none, a window in the middle, and all but the first."""
    starts, ends = torch.tensor([0, 0, 7, 40, 1]), torch.tensor([COLUMNS, 1, 7, 75, COLUMNS])
    return tuple(each[:, None].expand(ROWS, queries).int() for each in (starts, ends))  # pyright: ignore


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("queries", [1, 3])
def test_each_query_finds_what_its_own_keys_hold(dtype: torch.dtype, queries: int) -> None:
    query, buffers = drawn(ROWS, HEADS, queries, 24, dtype=dtype), drawn(ROWS + 2, KV_HEADS, 200, 24, dtype=dtype)
    key, value = buffers[:ROWS, :, :COLUMNS], drawn(ROWS, KV_HEADS, COLUMNS, 10, dtype=dtype)
    starts, ends = intervals(queries)
    tables = KeyTables(starts, ends, False, False, None, None)
    mask = AttentionMask(tables={None: tables})
    expected = reference_attention(query.double(), key.double(), value.double(), mask, Scoring(0.3))
    with torch.no_grad():
        found = attend(query, key, value, mask, scale=0.3)
        assert torch.equal(found, attend_to_cached(query, key, value, starts, ends, 0.3))
    assert float((found - expected).abs().max()) <= TOLERANCE[dtype] * float(expected.abs().max())
    assert not found[2].any()
    assert found.transpose(1, 2).is_contiguous()


def test_what_a_query_does_not_see_has_no_influence_and_other_rows_change_no_bit() -> None:
    query = drawn(ROWS, HEADS, 1, 24)
    key, value = (drawn(ROWS, KV_HEADS, COLUMNS, dim) for dim in (24, 10))
    starts, ends = intervals(1)
    with torch.no_grad():
        found = attend_to_cached(query, key, value, starts, ends, 0.3)
        for row in range(ROWS):
            q, k, v, start, end = (each[row : row + 1] for each in (query, key, value, starts, ends))
            assert torch.equal(attend_to_cached(q, k, v, start, end, 0.3)[0], found[row])
        for each in (key, value):
            each[3, :, 75:], each[3, :, :40] = torch.nan, torch.inf
        assert torch.equal(attend_to_cached(query, key, value, starts, ends, 0.3), found)


def test_an_attention_with_gradients_has_them() -> None:
    query, key, value = (each.requires_grad_() for each in (drawn(1, 2, 1, 8), drawn(1, 2, 9, 8), drawn(1, 2, 9, 8)))
    assert not takes(query, key, value)
    attend(query, key, value, AttentionMask()).sum().backward()
    assert value.grad is not None
    assert value.grad.abs().min() > 0


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_key_and_a_value_of_each_row_are_written_at_its_column(dtype: torch.dtype) -> None:
    buffers = drawn(ROWS + 1, KV_HEADS, 9, 5, dtype=dtype), drawn(ROWS + 1, KV_HEADS, 9, 3, dtype=dtype)
    key, value = drawn(ROWS, 1, KV_HEADS, 5, dtype=dtype).transpose(1, 2), drawn(ROWS, KV_HEADS, 1, 3, dtype=dtype)
    columns, expected = torch.tensor([0, 8, 3, 3, 5]), [each.clone() for each in buffers]
    rows = torch.arange(ROWS)
    expected[0][rows, :, columns], expected[1][rows, :, columns] = key[:, :, 0], value[:, :, 0]
    write_columns(buffers, (key, value), columns)
    assert all(map(torch.equal, buffers, expected))
