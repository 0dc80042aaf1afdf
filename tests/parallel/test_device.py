"""GPUs that are not there, that torch cannot use, or that two ranks would share: each is named before work begins."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hornbook.errors import DoesNotFitError, LostDeviceError, UsageError
from hornbook.parallel import device
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.device import check_device, choose_device, gpu_identity, unseen_gpus
from hornbook.parallel.world import distributed
from hornbook.settings.training import TrainConfig

Machine = Callable[..., None]
GPU = torch.device("cuda", 0)
AMPERE_ON = "sm_80 sm_86 sm_90 sm_120 compute_120"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """machine(gpus, seen, build="13.0", shown="0,9"): GPUs there are, those torch sees, its CUDA, what is visible."""

    def make(gpus: int, seen: int, build: str | None = "13.0", shown: str | None = None) -> None:
        for number in range(gpus):
            (tmp_path / f"nvidia{number}").touch()
        monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if shown is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)

    return make


def gpu_of(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kernels: str = AMPERE_ON) -> None:
    """torch has these kernels and sees a GPU of this capability."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_arch_list", kernels.split)


@pytest.mark.parametrize("name", ["cuda:7", "cuda:2", "cuda:x", "cuda:-1"])
def test_a_number_that_no_gpu_has_is_named(machine: Machine, name: str) -> None:
    machine(2, 2)
    with pytest.raises(
        UsageError, match=rf"train\.device is '{name}', .*\(2 on this machine\): write cuda:0 to cuda:1"
    ):
        choose_device(name)
    assert choose_device("cuda:1") == torch.device("cuda:1")


def test_of_hidden_gpus_the_variable_is_named(machine: Machine) -> None:
    machine(4, 1, shown="3")
    with pytest.raises(UsageError, match=r"\(1 by CUDA_VISIBLE_DEVICES=3\): write cuda:0, or auto"):
        choose_device("cuda:3")
    with pytest.raises(UsageError, match=r"share a GPU with another \(1 by CUDA_VISIBLE_DEVICES=3\)"):
        choose_device("auto", 1, same_devices=True)


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_variable_that_names_no_gpu_of_the_machine_is_refused(machine: Machine, name: str) -> None:
    machine(2, 0, shown="9")
    with pytest.raises(UsageError, match=r"CUDA_VISIBLE_DEVICES is '9', and this machine has GPUs 0 to 1.*device cpu"):
        choose_device(name)


@pytest.mark.parametrize(
    ("gpus", "build", "shown"),
    [
        (2, "13.0", ""),
        (2, "13.0", "-1"),
        (2, "13.0", "NoDevFiles"),
        (0, "13.0", "9"),
        (2, None, "0"),
        (2, "13.0", None),
    ],
)
def test_auto_takes_the_cpu_where_gpus_are_hidden_or_cannot_be_used(
    machine: Machine, gpus: int, build: str | None, shown: str | None
) -> None:
    machine(gpus, 0, build, shown)
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("build", "shown", "said"),
    [
        (None, None, r"a build without CUDA, on a machine with an NVIDIA GPU: install a CUDA build"),
        ("13.0", None, r"the NVIDIA driver does not answer .* `nvidia-smi`"),
        ("13.0", "", r"CUDA_VISIBLE_DEVICES is ''"),
    ],
)
def test_why_torch_sees_no_gpu_is_said(machine: Machine, build: str | None, shown: str | None, said: str) -> None:
    machine(1, 0, build, shown)
    with pytest.raises(UsageError, match=f"train.device is 'cuda', but .*{said}.*: use --train.device cpu"):
        choose_device("cuda")


def test_a_machine_without_a_gpu_lacks_nothing(machine: Machine) -> None:
    machine(0, 0)
    assert unseen_gpus() == ""


@pytest.mark.parametrize(
    ("capability", "kernels", "runs"),
    [
        ((8, 0), AMPERE_ON, True),
        ((8, 9), AMPERE_ON, True),
        ((9, 0), "sm_90a", True),
        ((12, 1), AMPERE_ON, True),
        ((13, 0), AMPERE_ON, True),
        ((13, 0), "sm_80 sm_120", False),
        ((7, 5), AMPERE_ON, False),
        ((6, 1), AMPERE_ON, False),
        ((8, 0), "sm_86", False),
        ((6, 1), "", True),
    ],
)
def test_a_gpu_without_kernels_is_refused(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kernels: str, runs: bool
) -> None:
    gpu_of(monkeypatch, capability, kernels)
    if runs:
        check_device(GPU)
        return
    with pytest.raises(
        UsageError, match=rf"Some GPU \(cuda:0\) has compute capability {capability[0]}\.{capability[1]}"
    ):
        check_device(GPU)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 12040).",
            UsageError,
            r"CUDA 12\.4.*Update the driver",
        ),
        ("CUDA error: uncorrectable ECC error encountered", LostDeviceError, "doctor --deep"),
        ("CUDA error: out of memory", DoesNotFitError, r"other processes have all memory of cuda:0: `nvidia-smi`"),
        ("something else", RuntimeError, "^something else$"),
    ],
)
def test_what_torch_says_when_it_opens_the_gpu(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception], said: str
) -> None:
    def refuse(_: torch.device) -> None:
        raise RuntimeError(text)

    gpu_of(monkeypatch, (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    with pytest.raises(kind, match=said):
        check_device(GPU)


def test_every_rank_checks_its_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(1, 1)
    gpu_of(monkeypatch, (6, 1))
    with pytest.raises(UsageError, match=r"capability 6\.1"), distributed(ParallelConfig(), TrainConfig(device="cuda")):
        pass


def test_a_gpu_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="a-b-c"))
    assert gpu_identity(GPU) == "a-b-c"
    assert gpu_identity(torch.device("cpu")) == ""
