"""Devices and threads."""

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.mesh import choose_device, distributed
from hornbook.run.config import TrainConfig


def test_auto_takes_the_best_there_is() -> None:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto").type == best
    assert choose_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="write auto, cpu, cuda"):
        choose_device("gpu")
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(UsageError, match=f"this torch sees no {absent} device"):
        choose_device(absent)


def test_threads_are_set_for_the_run_only() -> None:
    before = torch.get_num_threads()
    with distributed(ParallelConfig(), TrainConfig(threads=before + 1, device="cpu")) as mesh:
        assert torch.get_num_threads() == before + 1
        assert (mesh.rank, mesh.size, mesh.device.type) == (0, 1, "cpu")
    assert torch.get_num_threads() == before
    with distributed(ParallelConfig(), TrainConfig(threads=0, device="cpu")):
        assert torch.get_num_threads() == before
