"""`hornbook data`: the documents of a step, the steps of a document, the checkpoints of a source."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hornbook.cli import data
from hornbook.cli.main import main
from hornbook.rundir import RunDir
from hornbook.runstatus import steps_that_count

Output = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    words = ["--out", str(folder / "fast"), *tiny_settings, "checkpoint.every=4", "checkpoint.keep=10"]
    assert main(["train", *words]) == 0
    assert main(["fork", str(folder / "fast"), "--at", "4", "--out", str(folder / "fork")]) == 0
    return folder


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    """Run a command line: (exit code, what stands on stdout)."""

    def call(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["data", *(str(word) for word in words)])
        return code, capsys.readouterr().out

    return call


def test_documents_of_a_step(runs: Path, output: Output, tiny_corpus: Path):
    code, text = output(f"{runs / 'fast'}@3", "--json")
    assert code == 0
    value = json.loads(text)
    record = steps_that_count(RunDir(runs / "fast"))[2]
    assert value["token_hash"] == record["token_hash"]
    samples = {document["sample"] for document in value["documents"]}
    assert samples == set(range(record["first_sample"], record["first_sample"] + record["num_samples"]))
    for document in value["documents"]:
        assert document["id"] == f"{document['shard']}#{document['document']}"
        assert (tiny_corpus / (document["shard"] + ".bin")).exists()
    lengths = sum(document["length"] for document in value["documents"])
    assert lengths <= record["num_samples"] * 32
    code, text = output(f"{runs / 'fast'}@3")
    assert len(text.splitlines()) == len(value["documents"]) + 1
    assert output(f"{runs / 'fast'}@99")[0] == 2


def test_documents_of_data_that_was_changed_are_not_named(runs: Path, output: Output, tmp_path: Path):
    """Its recipe.toml may be changed: what the run followed stands in its ledger."""
    copy = shutil.copytree(runs / "fast", tmp_path / "copy")
    text = (copy / "recipe.toml").read_text()
    assert "seed = 1" in text
    (copy / "recipe.toml").write_text(text.replace("seed = 1", "seed = 2"))
    assert output(f"{copy}@3", "--json") == output(f"{runs / 'fast'}@3", "--json")
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[2])
    assert record["step"] == 3
    lines[2] = json.dumps(record | {"token_hash": "0" * 16})  # as if the data had given others then
    (copy / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert output(f"{copy}@3")[0] == 3


def test_where_is_the_inverse_of_the_documents_of_all_steps(runs: Path, output: Output):
    steps = [record["step"] for record in steps_that_count(RunDir(runs / "fast"))]
    seen: dict[str, set[int]] = {}
    for step in steps:
        for document in json.loads(output(f"{runs / 'fast'}@{step}", "--json")[1])["documents"]:
            seen.setdefault(document["id"], set()).add(step)
    names = list(seen)[:20]
    for name in names:
        code, text = output("where", name, "--runs", runs / "fast", "--json")
        assert code == 0
        (found,) = json.loads(text)["runs"].values()
        assert found["steps"] == sorted(seen[name])
    assert "steps" in output("where", names[0], "--runs", runs)[1]
    assert output("where", "no such document", "--runs", runs)[0] == 2


def test_remove_names_checkpoints_and_those_of_later_runs(runs: Path, output: Output):
    first = json.loads(output(f"{runs / 'fast'}@6", "--json")[1])["documents"][0]
    steps = json.loads(output("where", first["id"], "--runs", runs / "fast", "--json")[1])["runs"]
    (seen,) = [found["steps"] for found in steps.values()]
    value = json.loads(output("remove", first["id"], "--runs", runs, "--json")[1])
    named = {run["run"]: [Path(path).name for path in run["checkpoints"]] for run in value["runs"]}
    expected = [f"step-{step:08d}" for step in (4, 8, 12) if step >= seen[0]]
    assert named[str(runs / "fast")] == expected
    whole = json.loads(output("remove", first["source"], "--runs", runs, "--json")[1])
    assert {run["run"] for run in whole["runs"]} == {str(runs / "fast"), str(runs / "fork")}
    assert output("remove", "nothing", "--runs", runs)[0] == 2


def test_remove_names_later_runs_of_checkpoints_that_are_gone(runs: Path, output: Output, tmp_path: Path):
    parent = shutil.copytree(runs / "fast", tmp_path / "parent")
    assert main(["fork", str(parent), "--at", "8", "--out", str(tmp_path / "child")]) == 0
    shutil.rmtree(parent / "checkpoints" / "step-00000008")
    early = json.loads(output(f"{parent}@1", "--json")[1])["documents"][0]
    value = json.loads(output("remove", early["id"], "--runs", tmp_path, "--json")[1])
    named = {run["run"]: [Path(path).name for path in run["checkpoints"]] for run in value["runs"]}
    assert named[str(parent)] == ["step-00000004", "step-00000012"]
    assert str(tmp_path / "child") in named


def test_the_steps_of_a_run_are_held_not_its_samples(runs: Path, tmp_path: Path):
    copy = shutil.copytree(runs / "fast", tmp_path / "copy")
    first, *others = (copy / "metrics.jsonl").read_text().splitlines()
    last = {**json.loads(others[-1]), "first_sample": 10**12, "num_samples": 10**12}
    (copy / "metrics.jsonl").write_text(f"{first}\n{json.dumps(last)}\n")
    tracemalloc.start()
    learned = data._learned(RunDir(copy))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert learned.step_of(np.array([0, 10**12 - 1, 2 * 10**12 - 1])).tolist() == [1, -1, last["step"]]
