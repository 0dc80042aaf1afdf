"""`hornbook verify`: what it prints and its exit codes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """a and b are the same run, c has another seed."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert main(["train", "--out", str(folder / name), *tiny_settings, f"seed={seed}"]) == 0
    return folder


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command line: (exit code, what stands on stdout)."""

    def call(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, capsys.readouterr().out

    return call


Output = Callable[..., tuple[int, str]]


def test_equal_runs(runs: Path, output: Output):
    code, text = output("verify", runs / "a", runs / "b")
    assert code == 0
    assert text.splitlines()[-1] == "equal"
    assert "12 steps equal to the bit" in text


def test_different_runs_and_where_they_part(runs: Path, output: Output):
    code, text = output("verify", runs / "a", runs / "c")
    assert code == 3
    assert text.splitlines()[-1].startswith("they part at step 1 (")
    code, text = output("verify", runs / "a", runs / "c", "--json")
    assert code == 3
    value: dict[str, Any] = json.loads(text)
    assert value["equal"] is False
    assert value["parted"]["step"] == 1
    assert {part["name"]: part["different"] > 0 for part in value["parts"]} == {
        "tokens": True,
        "losses": True,
        "norms": True,
        "saves": True,
        "clock": False,
        "guard": True,
        "weights": True,
        "optimizer": True,
    }


def test_one_run(runs: Path, output: Output, tmp_path: Path):
    assert output("verify", runs / "a")[0] == 0
    copy = shutil.copytree(runs / "a", tmp_path / "copy")
    folder = copy / "checkpoints" / "step-00000008"
    (folder / "config.json").write_text("{}")
    code, text = output("verify", copy)
    assert code == 3
    assert "FAIL  step-00000008" in text
    assert text.splitlines()[-1] == "damaged"
    code, text = output("verify", copy, "--json")
    findings = {finding["what"]: finding["ok"] for finding in json.loads(text)["findings"]}
    assert findings["step-00000008"] is False
    assert findings["ledger"]
    assert findings["data"]


def test_no_such_run(tmp_path: Path, output: Output):
    assert output("verify", tmp_path / "absent") == (2, "")
