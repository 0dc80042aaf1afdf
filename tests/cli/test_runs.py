"""`hornbook runs`: read from directories alone, whatever state the runs are in."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.runs import columns, different_settings
from hornbook.errors import IntegrityError
from hornbook.rundir import RunDir, StateRecord
from hornbook.runlock import process_identity
from hornbook.runstatus import SILENCE_SECONDS, status_of

Output = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, rate in (("slow", 0.001), ("fast", 0.01)):
        words = [*tiny_settings, f"optim.lr={rate}", "eval.every=6"]
        assert main(["train", "--out", str(folder / name), *words]) == 0
    (folder / "no run").mkdir()
    return folder


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    """Run a command line: (exit code, what stands on stdout)."""

    def call(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["runs", *(str(word) for word in words)])
        return code, capsys.readouterr().out

    return call


def test_list(runs: Path, output: Output, monkeypatch: pytest.MonkeyPatch):
    code, text = output("ls", runs)
    assert code == 0
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [
        ["fast", "finished", "12"],
        ["slow", "finished", "12"],
    ]
    monkeypatch.setenv("HORNBOOK_RUNS", str(runs))
    rows = json.loads(output("ls", "--json")[1])["runs"]
    assert [row["name"] for row in rows] == ["fast", "slow"]
    assert all(row["bits_per_byte"] > 0 and row["loss"] > 0 and row["tokens"] == row["total_tokens"] for row in rows)


def test_list_of_nothing(tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch):
    assert output("ls", tmp_path) == (0, f"no runs in {tmp_path}\n")
    assert output("ls", tmp_path / "absent")[0] == 2
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HORNBOOK_RUNS", raising=False)
    assert output("ls") == (0, "no runs in runs\n")


def test_show(runs: Path, output: Output):
    code, text = output("show", runs / "fast")
    assert code == 0
    assert "status      finished" in text
    assert "checkpoint  step-00000012" in text
    assert "best" in text
    assert "held out    prose" in text
    assert "finish" in text
    value = json.loads(output("show", runs / "fast", "--json")[1])
    assert value["steps"] == 12
    assert [row["name"] for row in value["checkpoints"]] == ["step-00000012", "step-00000008", "step-00000004"]
    assert [e["step"] for e in value["evaluations"]] == [6, 12]
    assert value["events"][0]["kind"] == "start"


def test_show_names_a_damaged_manifest(runs: Path, output: Output, tmp_path: Path):
    copy = shutil.copytree(runs / "fast", tmp_path / "copy")
    (copy / "checkpoints" / "step-00000008" / "MANIFEST.json").unlink()
    code, text = output("show", copy)
    assert code == 0
    assert "DAMAGED" in text


def test_compare(runs: Path, output: Output):
    code, text = output("compare", runs / "slow", runs / "fast")
    assert code == 0
    (setting,) = [line for line in text.splitlines() if line.startswith("optim.lr")]
    assert setting.split() == ["optim.lr", "0.0010", "0.0100"]
    value = json.loads(output("compare", runs / "slow", runs / "fast", "--json")[1])
    assert value["settings"] == {"optim.lr": [0.001, 0.01]}
    assert [figure["steps"] for figure in value["figures"]] == [12, 12]
    assert value["figures"][1]["last loss"] < value["figures"][0]["last loss"]
    assert output("compare", runs / "slow")[0] == 2
    assert "the settings are equal" in output("compare", runs / "slow", runs / "slow")[1]


# --- status -----------------------------------------------------------------------------------------------------------


def state(**fields: object) -> StateRecord:
    base = {"attempt": 1, "step": 3, "tokens": 9, "status": "running", "heartbeat": time.time()}
    return {**base, **process_identity(os.getpid()), **fields}  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "running"),
        ({"status": "finished"}, "finished"),
        ({"status": "stopped"}, "stopped"),
        ({"status": "failed"}, "failed"),
        ({"started": "1"}, "dead"),
        ({"boot": "an older one"}, "dead"),
        ({"heartbeat": 0.0}, "running"),
        ({"host": "elsewhere"}, "running"),
        ({"host": "elsewhere", "heartbeat": time.time() - 2 * SILENCE_SECONDS}, "dead"),
    ],
)
def test_status_by_heartbeat(tmp_path: Path, fields: dict[str, object], expected: str):
    run = RunDir(tmp_path).create()
    run.write_state(state(**fields))
    assert status_of(run) == expected


def test_status_before_the_first_heartbeat(tmp_path: Path):
    assert status_of(RunDir(tmp_path).create()) == "new"


def test_a_damaged_ledger_is_named(runs: Path, tmp_path: Path, output: Output):
    copy = shutil.copytree(runs / "fast", tmp_path / "copy")
    (copy / "events.jsonl").write_text("{}\nnot json\n")
    assert output("show", copy)[0] == IntegrityError.exit_code


def test_different_settings():
    a = {"x": 1, "y": {"z": [1, 2], "w": None}}
    b = {"x": 1, "y": {"z": [1, 3], "w": None, "v": "new"}}
    assert different_settings([a, b]) == {"y.v": [None, "new"], "y.z": [[1, 2], [1, 3]]}


def test_columns_are_aligned():
    assert columns([("a", "b"), ("longer", "x")]) == "a       b\nlonger  x"
