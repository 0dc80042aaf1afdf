"""`hornbook doctor`: a table with remedies, JSON, and exit codes."""

import json
from functools import partial
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.run.machine import checks as doctor


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MATMUL_SECONDS", 0.02)
    monkeypatch.setattr(doctor, "matmul_rate", partial(doctor.matmul_rate, side=64))
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 20)
    found = {"right": True, "small_seconds": 1e-4, "large_seconds": 0.06, "lost_seconds": 0.5}
    monkeypatch.setattr(doctor, "measure_ranks", lambda _: found)


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok  ", "warn", "      ")) for line in lines)
    assert any("matmul bf16" in line and "GFLOP/s" in line for line in lines)


def test_json_and_a_disk_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--folder", str(tmp_path / "absent"), "--json"]) == 7
    value = json.loads(capsys.readouterr().out)
    assert value["verdict"] == "fail"
    (bad,) = [check for check in value["checks"] if check["verdict"] == "fail"]
    assert bad["name"] == "disk"
    assert bad["remedy"]


def test_what_is_installed_wrongly_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.torch, "__version__", "2.0.0")
    assert main(["doctor", "--folder", str(tmp_path)]) == 2


def test_no_network_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert main(["doctor", "--folder", str(tmp_path), "--json"]) == 0
