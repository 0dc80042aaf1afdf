"""`hornbook runs`: read from directories alone, whatever state the runs are in."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.train.runs import _shown, different_settings
from hornbook.errors import IntegrityError
from hornbook.files.run_directory import RunDir, StateRecord
from hornbook.files.run_lock import process_identity
from hornbook.files.run_status import SILENCE_SECONDS, status_of

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


def test_what_a_run_was_told_stays_in_sight() -> None:
    """However many checkpoints it saves afterwards."""
    kinds = ["start", "save", "intervention", *["save"] * 20]
    shown = _shown([{"kind": kind, "step": step} for step, kind in enumerate(kinds)])
    assert [(each["kind"], each["step"]) for each in shown] == [
        ("intervention", 2),
        *(("save", n) for n in range(11, 23)),
    ]
    assert _shown([{"kind": "intervention"}]) == [{"kind": "intervention"}]


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


def test_a_classifier_and_unreadable_runs_stand_beside_the_others(runs: Path, output: Output, tmp_path: Path):
    shutil.copytree(runs / "fast", tmp_path / "fast")
    labels = {"loss": 0.25, "accuracy": 0.75, "macro_f1": 0.5, "labels": 40, "read": 300, "of": 900}
    record = {"attempt": 1, "step": 12, "tokens": 9, "seconds": 1.0, "rows": "ab"}
    record |= {"sources": {"x": labels}, "all": labels}
    for name in ("classes", "cut", "odd", "strange"):
        shutil.copytree(runs / "slow", tmp_path / name)
    (tmp_path / "classes" / "evals" / "step-00000012.json").write_text(json.dumps(record))
    (tmp_path / "classes" / "evals" / "step-00000006.json").unlink()
    (tmp_path / "cut" / "evals" / "step-00000012.json").write_text("{")
    (tmp_path / "odd" / "evals" / "step-00000012.json").write_text("[]")
    (tmp_path / "strange" / "state.json").write_text(json.dumps({"status": "running", "step": "many"}))
    code, text = output("ls", tmp_path)
    assert code == 0
    lines = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert lines["classes"].endswith("accuracy 0.7500, macro f1 0.5000 on 300 of 900 tokens")
    assert "bits per byte on all" in lines["fast"]
    assert "step-00000012.json is not JSON" in lines["cut"]
    assert all(lines[name].split()[1] == "unreadable" for name in ("cut", "odd", "strange"))
    rows = {row["name"]: row for row in json.loads(output("ls", tmp_path, "--json")[1])["runs"]}
    assert rows["classes"]["held_out"] == {"loss": 0.25, "accuracy": 0.75, "macro_f1": 0.5}
    assert rows["classes"]["bits_per_byte"] is None
    assert rows["cut"]["problem"]
    code, text = output("show", tmp_path / "classes")
    assert code == 0
    assert "held out    all: loss 0.2500, accuracy 0.7500, macro f1 0.5000 on 300 of 900 tokens (step 12)" in text
    code, text = output("compare", tmp_path / "classes", tmp_path / "fast")
    assert code == 0
    assert "scored no validation rows in common" in text


def test_runs_are_compared_on_the_rows_that_all_scored(
    runs: Path, output: Output, tmp_path: Path, tiny_settings: tuple[str, ...]
):
    words = [*tiny_settings, "eval.every=6", "eval.tokens=96"]
    assert main(["train", "--out", str(tmp_path / "few"), *words]) == 0
    value = json.loads(output("compare", runs / "slow", tmp_path / "few", "--json")[1])
    slow, few = value["figures"]
    assert slow["last of"] == few["last of"] == slow["lowest of"]  # the partial figures of `few` stand beside nothing
    whole = json.loads((tmp_path / "few" / "evals" / "step-00000012.json").read_text())["whole"]["all"]
    assert few["last validation loss"] == few["lowest validation loss"] == whole["loss"]
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "few", tmp_path / name)
    value = json.loads(output("compare", tmp_path / "one", tmp_path / "two", "--json")[1])
    assert value["figures"][0]["lowest of"] != value["figures"][0]["last of"]
    assert (value["note"], value["settings"]) == ("", {})
    path = tmp_path / "two" / "evals" / "step-00000012.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"whole": None, "rows": "other"}))
    (tmp_path / "two" / "evals" / "step-00000006.json").unlink()
    value = json.loads(output("compare", tmp_path / "one", tmp_path / "two", "--json")[1])
    assert "no validation rows in common" in value["note"]
    assert value["figures"][0]["lowest validation loss"] is None


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
