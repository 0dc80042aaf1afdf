"""Axes, devices and threads."""

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.device import choose_device
from hornbook.parallel.world import AXES, Axis, World, axis_sizes, distributed, name_loopback
from hornbook.settings.training import TrainConfig

NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Has torch ask the driver's library for GPUs, not CUDA."""


def test_auto_takes_the_best_there_is() -> None:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto").type == best
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("resolves", [True, False])
def test_gloo_takes_the_loopback_interface_where_the_host_has_no_address(
    monkeypatch: pytest.MonkeyPatch, resolves: bool
) -> None:
    def look_up(*_: Any) -> list[Any]:
        if not resolves:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    name_loopback()
    assert os.environ.get("GLOO_SOCKET_IFNAME", "").startswith("lo") is not resolves


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="write auto, cpu, cuda"):
        choose_device("gpu")
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(UsageError, match=f"this torch sees no {absent} device"):
        choose_device(absent)


def test_asking_for_a_gpu_does_not_initialise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor asks, and then forks ranks that use it."""
    asked: list[str | None] = []
    monkeypatch.delenv(NVML, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(os.environ.get(NVML)) or False)
    choose_device("auto")
    assert asked == ["1"]


def test_threads_are_set_for_the_run_only() -> None:
    before = torch.get_num_threads()
    with distributed(ParallelConfig(), TrainConfig(threads=before + 1, device="cpu")) as world:
        assert torch.get_num_threads() == before + 1
        assert (world.rank, world.size, world.device.type) == (0, 1, "cpu")
    assert torch.get_num_threads() == before
    with distributed(ParallelConfig(), TrainConfig(threads=0, device="cpu")):
        assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("name", "local_rank", "device"), [("auto", 1, "cuda:1"), ("cuda", 0, "cuda:0"), ("cuda:1", 0, "cuda:1")]
)
def test_each_rank_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, name: str, local_rank: int, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(name, local_rank) == torch.device(device)


@pytest.mark.parametrize(("name", "local_rank"), [("auto", 2), ("cuda", 2), ("cuda:0", 1)])
def test_ranks_do_not_share_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, local_rank: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=f"rank {local_rank} of this machine would share a GPU"):
        choose_device(name, local_rank)


@pytest.mark.parametrize(
    ("local_rank", "same_devices", "device"), [(1, False, "cuda:0"), (0, True, "cuda:0"), (1, True, None)]
)
def test_one_gpu_may_be_one_of_several_only_where_a_launcher_shows_each_rank_its_own(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, same_devices: bool, device: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    if device is not None:
        assert choose_device("auto", local_rank, same_devices) == torch.device(device)
        return
    with pytest.raises(UsageError, match=r"rank 1 .* would share a GPU with another \(1 on this machine\)"):
        choose_device("auto", local_rank, same_devices)


def test_numbers_along_axes_are_those_of_the_grid() -> None:
    sizes: dict[Axis, int] = {"pipeline": 2, "replica": 3, "shard": 2, "tensor": 2}
    grid = torch.arange(24).view([sizes.get(axis, 1) for axis in AXES])
    for rank in range(24):
        world = World(torch.device("cpu"), rank, sizes)
        pipeline, replica, shard, _, tensor, _ = ((grid == rank).nonzero()[0]).tolist()
        assert (world.size, world.data_size, world.data_rank) == (24, 6, 2 * replica + shard)
        assert world.axis_rank(["tensor", "pipeline"]) == 2 * pipeline + tensor
        assert (world.axis_size(["context"]), world.axis_rank(["context"]), world.axis_rank(AXES)) == (1, 0, rank)
    alone = World(torch.device("cpu"))
    assert (alone.size, alone.data_size, alone.data_rank, alone.is_rank0) == (1, 1, 0, True)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"data": 6}, {"replica": 6}),
        ({"data": 6, "shard": "everything"}, {"replica": 1, "shard": 6}),
        ({"data": 6, "shard": "gradients", "replicas": 2}, {"replica": 2, "shard": 3}),
    ],
)
def test_a_configuration_widens_the_axes_of_data(settings: dict[str, Any], sizes: dict[str, int]) -> None:
    config = ParallelConfig.model_validate(settings)
    assert axis_sizes(config) == sizes
    assert config.world == 6


def test_what_rank_0_says_goes_for_all(run_ranks: Callable[..., list[int]]) -> None:
    assert run_ranks("tests/parallel/cases.py:follow", 3) == [7, 7, 7]


def test_no_rank_goes_on_before_all_have_met(run_ranks: Callable[..., list[list[float]]]) -> None:
    # One that went on, had nothing to say and left took its connections along while others were still opening theirs.
    done, entered = zip(*run_ranks("tests/parallel/cases.py:enter", 3, 1), strict=True)
    assert max(done) <= min(entered)


def test_a_sublayer_can_be_divided_by_hooks_around_it(run_ranks: Callable[..., list[list[float]]]) -> None:
    """Output, gradient of the input, and of each rank's part of the weights, on two replicas of two tensor ranks."""
    differences = run_ranks("tests/parallel/cases.py:divided_mlp", 4)
    assert max(max(each) for each in differences) < 1e-11, differences
