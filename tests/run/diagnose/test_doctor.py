"""The doctor: every figure is measured, every complaint has its remedy."""

import os
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from hornbook.files.extras import install_command
from hornbook.model.layers.precision import Choice
from hornbook.run.diagnose import doctor, doctor_ranks
from hornbook.run.diagnose.doctor import Check, diagnose, worst


def one(checks: list[Check]) -> Check:
    assert len(checks) == 1
    return checks[0]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MATMUL_SECONDS", 0.02)
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
    assert rate == pytest.approx(2 * 1024**3 / 0.5 / 1e9)


def test_rates_are_told_and_what_auto_makes_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "matmul_rate", lambda _, dtype: 10.0 if dtype == torch.bfloat16 else 90.0)
    monkeypatch.setattr(doctor, "choose_precision", lambda _: Choice("fp32", "a reason"))
    single, half, chosen = doctor.check_matmul()
    assert (single.verdict, single.value) == ("ok", 90.0)
    assert (half.verdict, half.value) == ("ok", 10.0)
    assert chosen.text == "train.precision auto takes fp32: a reason"


def test_a_driver_that_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver = tmp_path / "version"
    driver.write_text("NVRM version: 550.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = one(doctor.check_torch(driver, None))
    assert (check.verdict, "CUDA build" in check.remedy) == ("warn", True)
    check = one(doctor.check_torch(driver, "12.8"))
    assert (check.verdict, "driver" in check.remedy) == ("fail", True)
    assert one(doctor.check_torch(tmp_path / "absent", None)).verdict == "ok"


def test_a_torch_that_is_too_old_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    check = one(doctor.check_torch())
    assert check.verdict == "fail"
    assert "pip install 'torch>=2.13'" in check.remedy
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
