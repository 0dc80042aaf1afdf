"""Jobs are done once each, on several processes, and a process that dies costs only time."""

import os
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from hornbook.kernels import ahead
from hornbook.kernels import cache as kernel_cache
from hornbook.kernels.ahead import announce_late_compiling, compile_ahead


def done_by(folder: Path, name: str) -> None:
    (folder / name).write_text(str(os.getpid()))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_each_job_is_done_once(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if processes > 1 and sys.platform != "linux":
        pytest.skip("forks on Linux only")
    monkeypatch.setattr(ahead, "_processes", lambda: processes)
    before = set(psutil.Process().children())
    compile_ahead([partial(done_by, tmp_path, str(number)) for number in range(20)])
    assert {path.name for path in tmp_path.iterdir()} == set(map(str, range(20)))
    assert capsys.readouterr().err.startswith("compiling kernels (once): 20, some")
    assert set(psutil.Process().children()) <= before  # nobody is left behind


def test_a_fork_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if sys.platform != "linux":
        pytest.skip("forks on Linux only")
    monkeypatch.setattr(ahead, "_processes", lambda: 3)
    here = os.getpid()

    def job(name: str) -> None:
        if os.getpid() != here:
            os.kill(os.getpid(), 9)
        done_by(tmp_path, name)

    compile_ahead([partial(job, str(number)) for number in range(20)])
    assert len(list(tmp_path.iterdir())) >= 18


def test_nothing_to_do_is_not_told(capsys: pytest.CaptureFixture[str]):
    compile_ahead([])
    assert capsys.readouterr().err == ""


def test_quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("HORNBOOK_QUIET", "1")
    compile_ahead([partial(done_by, tmp_path, str(number)) for number in range(5)])
    assert capsys.readouterr().err == ""


def test_late_compiling_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(kernel_cache, "COMPILED", {"one": 0.6})
    monkeypatch.setattr(kernel_cache, "listeners", [])
    announce_late_compiling()
    for seconds in (0.0, 0.6, 0.6):
        kernel_cache.COMPILED[f"then {seconds}"] = seconds
        for tell in list(kernel_cache.listeners):
            tell("one")
    assert capsys.readouterr().err == "compiling kernels (once)\n"


def test_who_was_told_before_is_not_told_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(kernel_cache, "listeners", [])
    announce_late_compiling()
    compile_ahead([int, int])
    assert kernel_cache.listeners == []
    assert capsys.readouterr().err.count("compiling") == 1
