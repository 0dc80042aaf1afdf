"""The doctor: every figure is measured, every complaint has its remedy."""

import importlib.metadata
import os
import sys
from collections import namedtuple
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from hornbook.cli.start import doctor as cli_doctor
from hornbook.errors import Exit
from hornbook.files.extras import install_command
from hornbook.model.layers.precision import Choice
from hornbook.run.machine import checks as doctor
from hornbook.run.machine import rank_checks as doctor_ranks
from hornbook.run.machine.checks import Check, diagnose, worst


def one(checks: list[Check]) -> Check:
    assert len(checks) == 1
    return checks[0]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MATMUL_SECONDS", 0.02)
    monkeypatch.setattr(doctor, "matmul_rate", partial(doctor.matmul_rate, side=64))
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 20)


FOUND = {"right": True, "small_seconds": 1e-4, "large_seconds": 0.06, "lost_seconds": 0.5}


@pytest.fixture
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of two ranks without their seconds."""
    monkeypatch.setattr(doctor, "measure_ranks", lambda _: FOUND)


@pytest.mark.usefixtures("no_ranks")
def test_everything_is_checked_and_complaints_have_remedies(tmp_path: Path):
    checks = diagnose(tmp_path)
    assert {"python", "torch", "memory", "threads", "matmul fp32", "matmul bf16"} <= {check.name for check in checks}
    assert {"disk write", "fsync", "free space", "offline", "text", "extras", "ranks", "time-out"} <= {
        check.name for check in checks
    }
    for check in checks:
        assert (check.verdict == "ok") == (check.remedy == ""), check
    figures = {check.name: check.value for check in checks if check.value is not None}
    assert all(value > 0 for value in figures.values())
    assert list(tmp_path.iterdir()) == []


def test_matmul_rate_counts_two_operations_per_product(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "MATMUL_SECONDS", 1.9)
    ticks = iter([0.0, 0.0, 1.0, 1.5, 2.0, 9.0])  # until; loop, begin, end (0.5 s); loop ends
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    rate = doctor.matmul_rate(torch.device("cpu"), torch.float32)
    assert rate == pytest.approx(2 * 64**3 / 0.5 / 1e9)


def test_rates_are_told_and_what_auto_makes_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "matmul_rate", lambda _, dtype: 10.0 if dtype == torch.bfloat16 else 90.0)
    monkeypatch.setattr(doctor, "choose_precision", lambda _: Choice("fp32", "a reason"))
    single, half, chosen = doctor.check_matmul()
    assert (single.verdict, single.value) == ("ok", 90.0)
    assert (half.verdict, half.value) == ("ok", 10.0)
    assert chosen.text == "train.precision auto takes fp32: a reason"


@pytest.mark.parametrize(
    ("gpus", "seen", "build", "shown", "verdict", "said"),
    [
        (0, 0, None, None, "ok", ""),
        (1, 0, None, None, "warn", "CUDA build"),
        (1, 0, "13.0", None, "fail", "driver"),
        (1, 0, "13.0", "9", "fail", "CUDA_VISIBLE_DEVICES is '9'"),
        (2, 0, "13.0", "0,0", "fail", "CUDA_VISIBLE_DEVICES is '0,0'"),
        (2, 0, "13.0", "", "ok", ""),
        (2, 1, "13.0", "0,9", "fail", "names 2 GPUs, and torch sees 1"),
        (2, 2, "13.0", "0,1", "ok", ""),
    ],
)
def test_gpus_that_torch_does_not_see(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    seen: int,
    build: str | None,
    shown: str | None,
    verdict: str,
    said: str,
):
    for number in range(gpus):
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr("hornbook.parallel.device.DEVICE_FILES", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    check = one(doctor.check_torch())
    assert (check.verdict, said in check.remedy) == (verdict, True)


@pytest.mark.parametrize(
    ("text", "name", "code"),
    [
        ("The NVIDIA driver on your system is too old (found version 12040).", "cuda:0", Exit.USAGE),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "cuda:0", Exit.USAGE),
        ("CUDA error: uncorrectable ECC error encountered", "GPU 0", Exit.HARDWARE),
    ],
)
def test_a_gpu_that_cannot_be_used_is_told_and_the_cpu_measured(
    monkeypatch: pytest.MonkeyPatch, text: str, name: str, code: Exit
):
    def refuse(_: torch.device) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", refuse)
    check = next(each for each in doctor.check_devices() if each.name == name)
    assert check.verdict == "fail"
    assert text.partition(" (found")[0] in check.remedy
    assert cli_doctor._code([check]) == code
    assert "on cpu" in doctor.check_matmul()[0].text


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "matmul", "out of memory"),
        ("CUDA error: an illegal memory access was encountered", "GPU 0", "doctor --deep"),
    ],
)
def test_a_gpu_that_fails_while_it_computes_is_told(monkeypatch: pytest.MonkeyPatch, text: str, name: str, said: str):
    def refuse(*_: object) -> float:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(doctor, "device_problem", lambda _: None)
    monkeypatch.setattr(doctor, "matmul_rate", refuse)
    check = one(doctor.check_matmul())
    assert (check.name, check.verdict, said in check.remedy) == (name, "fail", True)


def test_memory_of_a_gpu_that_others_hold_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(doctor, "device_problem", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    for free, verdict in ((10 * 10**9, "warn"), (79 * 10**9, "ok")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 80 * 10**9))
        check = next(each for each in doctor.check_devices() if each.name == "cuda:0")
        assert (check.verdict, "nvidia-smi" in check.remedy) == (verdict, verdict == "warn")


@pytest.mark.parametrize(("free", "verdict"), [(64 << 20, "warn"), (8 << 30, "ok")])
def test_little_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, verdict: str):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    check = one(doctor.check_shared(tmp_path))
    assert (check.verdict, "--shm-size" in check.remedy) == (verdict, verdict == "warn")
    assert doctor.check_shared(tmp_path / "absent") == []


def test_ranks_that_nccl_refuses_get_its_remedy(monkeypatch: pytest.MonkeyPatch):
    text = "Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888)"
    monkeypatch.setattr(doctor, "measure_ranks", lambda _: {"error": text})
    assert "--shm-size" in one(doctor.check_ranks()).remedy


def test_a_torch_that_is_too_old_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    check = one(doctor.check_torch())
    assert check.verdict == "fail"
    assert "pip install 'torch>=2.11'" in check.remedy
    assert worst([check]) == "fail"


@pytest.mark.parametrize(("threads", "remedy"), [(99, "wait for each other"), (1, "idle"), (4, "")])
def test_threads_against_cores(monkeypatch: pytest.MonkeyPatch, threads: int, remedy: str):
    monkeypatch.setattr(doctor, "usable_cores", lambda: 4)
    monkeypatch.setattr("psutil.cpu_count", lambda **_: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    check = one(doctor.check_threads())
    assert remedy in check.remedy
    assert (check.verdict == "ok") == (remedy == "")


def test_a_disk_that_cannot_be_written_fails(tmp_path: Path):
    check = one(doctor.check_disk(tmp_path / "absent"))
    assert check.verdict == "fail"
    assert str(tmp_path / "absent") in check.text


@pytest.mark.parametrize(("figures", "bad"), [((10, 1, 10**12), 0), ((900, 500, 10**12), 1), ((900, 1, 10**9), 2)])
def test_a_slow_or_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: tuple[float, float, int], bad: int
):
    monkeypatch.setattr(doctor, "disk_rate", lambda _: figures[:2])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=figures[2]))
    assert [check.verdict for check in doctor.check_disk(tmp_path)] == ["warn" if i == bad else "ok" for i in range(3)]


def test_little_memory_is_told(monkeypatch: pytest.MonkeyPatch):
    memory = namedtuple("memory", "available total")
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory(10**9, 8 * 10**9))
    assert doctor.check_devices()[0].verdict == "warn"


def test_encodings_other_than_utf8_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "ANSI_X3.4-1968")
    check = one(doctor.check_text())
    assert (check.verdict, "LANG" in check.remedy) == ("warn", True)


def test_offline_state_is_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert one(doctor.check_offline()).text == "set: HF_HUB_OFFLINE"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert "not set" in one(doctor.check_offline()).text


def test_extras_name_what_lacks(monkeypatch: pytest.MonkeyPatch):
    lines = ['psutil>=6; extra == "whole"', 'psutil; extra == "half"', 'nonesuch>=1; extra == "half"']
    lines += ['nonesuch; extra == "absent"', "torch>=2.13"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: lines)
    assert one(doctor.check_extras()).text.startswith(
        f"installed: whole; not installed: absent, half (lacks nonesuch): {install_command('NAME')}"
    )


def test_a_checkout_that_is_not_installed_is_examined(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", missing)
    assert one(doctor.check_torch()).text.startswith(torch.__version__)
    assert one(doctor.check_extras()).text == "installed: none"


def test_kernels_without_torchs_team_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(doctor, "team_library", lambda: Path("torch/lib/libomp.dylib"))
    assert one(doctor.check_kernels()) == Check(
        "kernels", "ok", "4 threads of torch's own OpenMP (libomp.dylib)", "", 4
    )
    monkeypatch.setattr(doctor, "team_library", lambda: None)
    check = one(doctor.check_kernels())
    assert (check.verdict, check.text.partition(":")[0]) == ("warn", "one thread")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert one(doctor.check_kernels()).verdict == "ok"


def test_disk_rate_is_of_bytes_that_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(os.fstat(file).st_size)
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    doctor.disk_rate(tmp_path)
    assert synced == [doctor.DISK_BYTES] + [8] * doctor.FSYNCS


def test_two_ranks_meet_sum_and_miss_each_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor_ranks, "REDUCE_BYTES", 1 << 20)
    monkeypatch.setenv("RANK", "5")  # a launcher's variables are not for these two
    monkeypatch.setenv("WORLD_SIZE", "9")
    found = doctor_ranks.measure_ranks("gloo")
    assert found.get("right"), found
    assert found["small_seconds"] > 0
    assert found["large_seconds"] > 0
    assert doctor_ranks.LOST_SECONDS * 0.9 < found["lost_seconds"] < doctor_ranks.NOTICED_SECONDS


def test_ranks_that_cannot_meet_say_why_and_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonesuch")
    children = psutil.Process().children(recursive=True)
    check = one(doctor.check_ranks())
    assert check.verdict == "fail"
    assert "nonesuch" in check.text
    assert "GLOO_SOCKET_IFNAME" in check.remedy
    assert psutil.Process().children(recursive=True) == children


def test_ranks_that_never_answer_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(doctor_ranks, "JOIN_SECONDS", 0.1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    children = psutil.Process().children(recursive=True)
    assert doctor_ranks.measure_ranks("gloo") == {"error": "no answer in 0.3 s"}
    assert psutil.Process().children(recursive=True) == children


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        ({}, ["ok", "ok", "ok"]),
        ({"right": False}, ["fail", "ok", "ok"]),
        ({"large_seconds": 2.0}, ["ok", "warn", "ok"]),
        ({"lost_seconds": None}, ["ok", "ok", "fail"]),
    ],
)
def test_what_two_ranks_found_is_told(monkeypatch: pytest.MonkeyPatch, change: dict[str, object], verdicts: list[str]):
    monkeypatch.setattr(doctor, "measure_ranks", lambda _: {**FOUND, **change})
    checks = doctor.check_ranks()
    assert [check.verdict for check in checks] == verdicts
    assert [bool(check.remedy) for check in checks] == [verdict != "ok" for verdict in verdicts]
    assert [check.name for check in checks] == ["ranks", "all-reduce", "time-out"]


@pytest.mark.parametrize(("devices", "backend"), [(0, "gloo"), (1, "gloo"), (2, "nccl")])
def test_ranks_take_the_devices_where_there_are_two(monkeypatch: pytest.MonkeyPatch, devices: int, backend: str):
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(doctor, "measure_ranks", lambda backend: asked.append(backend) or FOUND)
    text = doctor.check_ranks()[0].text
    assert asked == [backend]
    assert ("NCCL needs two devices" in text) == (devices == 1)
