"""Microbatches filled up to a number of rows, and in pinned memory: every field follows."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch, GlobalBatch, Source, fill_rows, pinned


def make(rows: int) -> Batch:
    tokens = torch.arange(rows * 6).view(rows, 6)
    lengths = [(2, 4), (6,), (1, 5)][:rows]
    source = Source(tokens + 100, tokens % 6, lengths)
    more = {"prefixes": lengths, "types": tokens % 2, "values": tokens[..., None].float(), "source": source}
    zeros = torch.zeros(rows, dtype=torch.int64)
    return Batch(tokens, tokens + 1, torch.ones(rows, 6), tokens % 6, lengths, zeros, zeros, **more)


def test_rows_that_are_added_count_nothing() -> None:
    batch = make(3)
    filled = fill_rows(batch, 5)
    assert filled.weights.sum() == batch.weights.sum()
    assert torch.all(filled.weights[3:] == 0)
    assert filled.source is not None
    assert batch.source is not None
    for ours, theirs in ((filled, batch), (filled.source, batch.source)):
        for name in (field.name for field in fields(ours)):
            value, old = getattr(ours, name), getattr(theirs, name)
            if isinstance(value, (Tensor, list)) and name != "weights":
                assert len(value) == 5
                assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(value, [*old, old[2], old[2]]))  # noqa: B905
    assert torch.all(batch.weights == 1)


def test_a_full_batch_stays_as_it_is() -> None:
    batch = make(2)
    assert fill_rows(batch, 2) is batch


def test_every_tensor_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here pinning is only noted: it takes a GPU."""
    noted: list[int] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: noted.append(tensor.numel()) or tensor)
    batch = pinned(GlobalBatch([make(2), make(3)], 1.0, "", 0, 5, 30))
    assert len(noted) == 2 * 10
    assert batch.batches[1].document_lengths == make(3).document_lengths
