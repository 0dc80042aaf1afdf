"""Copies between host and device: pinned memory has no gaps, and results are fetched while the device goes on."""

import pytest
import torch
from torch import Tensor

from hornbook.model.layers.transfer import pinned, start_fetch
from tests.gpu import DEVICES


def test_memory_is_pinned_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned view keeps its strides, and CUDA copies a tensor with gaps through memory that is not pinned."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    view = torch.arange(12).view(3, 4)[:, ::2]
    assert pinned(view, torch.device("cuda")).is_contiguous()
    assert torch.equal(pinned(view, torch.device("cuda")), view)
    assert pinned(view, torch.device("cpu")) is view


@pytest.mark.parametrize("device", DEVICES)
def test_fetched_tensors_are_those_of_the_call(device: torch.device) -> None:
    first, second = torch.arange(6, device=device).view(2, 3), torch.ones(2, dtype=torch.float64, device=device)
    finish = start_fetch([first.clone(), second.clone()])
    first.add_(1)  # later work does not reach what was fetched
    got = finish()
    assert [each.device.type for each in got] == ["cpu", "cpu"]
    assert torch.equal(got[0], torch.arange(6).view(2, 3))
    assert got[1].tolist() == [1.0, 1.0]
