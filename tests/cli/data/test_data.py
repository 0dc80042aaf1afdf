"""`hornbook data`: the documents of a step, the steps of a document, the checkpoints of a source."""

import json
import re
import shlex
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hornbook.cli.main import main
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import steps_that_count
from hornbook.run.doctor.exposure import learned as learned_of

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
        assert found["runs_on_to"] == max(steps)
    assert f"(of {max(steps)} steps)" in output("where", names[0], "--runs", runs / "fast")[1]
    assert output("where", "no such document", "--runs", runs)[0] == 2


def test_affected_names_checkpoints_and_those_of_later_runs(runs: Path, output: Output):
    first = json.loads(output(f"{runs / 'fast'}@6", "--json")[1])["documents"][0]
    steps = json.loads(output("where", first["id"], "--runs", runs / "fast", "--json")[1])["runs"]
    (seen,) = [found["steps"] for run, found in steps.items() if run == str(runs / "fast")]
    value = json.loads(output("affected", first["id"], "--runs", runs, "--json")[1])
    named = {run["run"]: [Path(path).name for path in run["checkpoints"]] for run in value["runs"]}
    expected = [f"step-{step:08d}" for step in (4, 8, 12) if step >= seen[0]]
    assert named[str(runs / "fast")] == expected
    whole = json.loads(output("affected", first["source"], "--runs", runs, "--json")[1])
    assert {run["run"] for run in whole["runs"]} == {str(runs / "fast"), str(runs / "fork")}
    assert output("affected", "nothing", "--runs", runs)[0] == 2


def test_affected_names_later_runs_of_checkpoints_that_are_gone(runs: Path, output: Output, tmp_path: Path):
    parent = shutil.copytree(runs / "fast", tmp_path / "parent")
    assert main(["fork", str(parent), "--at", "8", "--out", str(tmp_path / "child")]) == 0
    shutil.rmtree(parent / "checkpoints" / "step-00000008")
    early = json.loads(output(f"{parent}@1", "--json")[1])["documents"][0]
    value = json.loads(output("affected", early["id"], "--runs", tmp_path, "--json")[1])
    named = {run["run"]: [Path(path).name for path in run["checkpoints"]] for run in value["runs"]}
    assert named[str(parent)] == ["step-00000004", "step-00000012"]
    assert str(tmp_path / "child") in named


def test_the_steps_of_a_run_are_held_not_its_samples(runs: Path, tmp_path: Path):
    copy = shutil.copytree(runs / "fast", tmp_path / "copy")
    first, *others = (copy / "metrics.jsonl").read_text().splitlines()
    last = {**json.loads(others[-1]), "first_sample": 10**12, "num_samples": 10**12}
    (copy / "metrics.jsonl").write_text(f"{first}\n{json.dumps(last)}\n")
    tracemalloc.start()
    learned = learned_of(RunDir(copy))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert learned.step_of(np.array([0, 10**12 - 1, 2 * 10**12 - 1])).tolist() == [1, -1, last["step"]]


def earliest(output: Output, run: Path, name: str, folder: Path) -> dict[str, Any]:
    return json.loads(output("where", name, "--runs", folder, "--json")[1])["runs"][str(run)]


def test_where_knows_what_a_fork_and_its_fork_learned_before_they_began(runs: Path, output: Output, tmp_path: Path):
    for name in ("fast", "fork"):
        shutil.copytree(runs / name, tmp_path / name)
    words = ["--data.weights.prose", "1", "--data.weights.notes", "0"]
    assert main(["fork", str(tmp_path / "fork"), "--at", "8", "--out", str(tmp_path / "again"), *words]) == 0
    documents = json.loads(output(f"{tmp_path / 'fast'}@2", "--json")[1])["documents"]
    note = next(document["id"] for document in documents if document["source"] == "notes")
    first = earliest(output, tmp_path / "fast", note, tmp_path)["steps"][0]
    for name in ("fork", "again"):
        through = earliest(output, tmp_path / name, note, tmp_path)["through"]
        assert {"run": str(tmp_path / "fast"), "steps": [first]} in through
    text = output("where", note, "--runs", tmp_path / "again")[1]  # the origins lie elsewhere, and are found
    assert "never seen" not in text
    assert f"fast, step {first}" in text
    shutil.rmtree(tmp_path / "fork")  # the one between is gone: what was before it is still known
    found = earliest(output, tmp_path / "again", note, tmp_path)
    assert [each["run"] for each in found["through"]] == [str(tmp_path / "fast")]
    assert found["unknown"] == ["the run fork up to step 8, which is not here"]
    named = json.loads(output("affected", note, "--runs", tmp_path, "--json")[1])["runs"]
    assert str(tmp_path / "again") in {each["run"] for each in named}
    (tmp_path / "fast").rename(tmp_path / "renamed")
    found = earliest(output, tmp_path / "again", note, tmp_path)
    assert [each["run"] for each in found["through"]] == [str(tmp_path / "renamed")]


def test_what_came_before_is_known_through_export_import_grow_and_from(
    runs: Path, output: Output, tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    fast = tmp_path / "fast"
    shutil.copytree(runs / "fast", fast)
    checkpoint = fast / "checkpoints" / "step-00000004"
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "hf"), "--no-certificate"]) == 0
    assert str(tmp_path) not in (tmp_path / "hf" / "lineage.json").read_text()  # such a folder is given away
    assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "in"), "--no-certificate"]) == 0
    assert main(["grow", str(tmp_path / "in"), "--layers", "4", "--out", str(tmp_path / "deep")]) == 0
    model = [word for word in tiny_settings if not word.startswith("model.")]
    assert main(["train", "--from", str(tmp_path / "deep"), "--out", str(tmp_path / "late"), *model]) == 0
    documents = json.loads(output(f"{fast}@1", "--json")[1])["documents"]
    found = earliest(output, tmp_path / "late", documents[0]["id"], tmp_path)
    assert found["through"][0]["run"] == str(fast)
    assert found["through"][0]["steps"][0] == 1
    assert max(found["through"][0]["steps"]) <= 4
    assert found["unknown"] == []
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "late")]) == 0
    assert "fast, step 4" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "hf")
    (tmp_path / "in" / "lineage.json").unlink()
    assert main(["train", "--from", str(tmp_path / "in"), "--out", str(tmp_path / "dark"), *model]) == 0
    later = json.loads(output(f"{fast}@12", "--json")[1])["documents"]
    found = earliest(output, tmp_path / "dark", later[0]["id"], tmp_path)
    assert found["unknown"] == ["in, of whose training nothing is recorded"]
    assert "never seen" not in output("where", later[0]["id"], "--runs", tmp_path / "dark")[1]


def test_a_run_that_cannot_be_read_is_named_and_hides_no_other(runs: Path, output: Output, tmp_path: Path):
    for name in ("fast", "odd"):
        shutil.copytree(runs / "fast", tmp_path / name)
    (tmp_path / "odd" / "events.jsonl").write_text("not json\n{}\n")
    first = json.loads(output(f"{tmp_path / 'fast'}@1", "--json")[1])["documents"][0]
    for verb in ("where", "affected"):
        code, text = output(verb, first["id"], "--runs", tmp_path)
        assert code == 3
        assert f"{tmp_path / 'fast'}: " in text
        assert f"{tmp_path / 'odd'}: unknown, because it cannot be read: " in text


def test_the_advice_of_affected_works(tmp_path: Path, output: Output, tiny_settings: tuple[str, ...]):
    """Followed to the letter, the document and its duplicates are gone from data and training; so is a source."""
    rows = [
        {"id": f"row,{n % 40}" if n < 40 else f"again {n}", "text": f"number {n % 40} of the texts " * 9}
        for n in range(44)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": f"b has {n} words " * 9}) + "\n" for n in range(40)))
    prepare = ["prepare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    settings = [word for word in tiny_settings if not word.startswith(("data.path", "train."))]
    train = ["train", *settings, "train.epochs=1", "train.batch_tokens=128", "train.sequence=32", "train.micro_batch=4"]

    def make(name: str, *words: str) -> None:
        assert main([*prepare, "--out", str(tmp_path / name), *words]) == 0
        assert main(["tokenize", str(tmp_path / name), "--text.tokenizer.vocab", "300"]) == 0
        assert main([*train, f"data.path={tmp_path / name}", "--out", str(tmp_path / "runs" / name)]) == 0

    make("first")
    advice = output("affected", "row,3", "--runs", tmp_path / "runs")[1].splitlines()[-1]
    found = re.search(r"`(--text\.exclude .*)`", advice)
    assert found is not None
    make("second", *shlex.split(found[1]))
    assert json.loads((tmp_path / "second" / "funnel.json").read_text())["total"]["dropped"]["excluded"]["rows"] == 1
    assert output("where", "row,3", "--runs", tmp_path / "runs" / "second")[0] == 2
    assert output("where", "again 43", "--runs", tmp_path / "runs" / "second")[0] == 2  # its text was the same
    assert output("where", "row,4", "--runs", tmp_path / "runs" / "second")[0] == 0
    advice = output("affected", "b", "--runs", tmp_path / "runs")[1].splitlines()[-1]
    found = re.search(r"`(--data\.weights\.b 0)`", advice)
    assert found is not None
    words = [*shlex.split(found[1]), "--data.weights.a", "1", f"data.path={tmp_path / 'first'}"]
    assert main([*train, *words, "--out", str(tmp_path / "third" / "run")]) == 0
    assert "was trained on b" in output("affected", "b", "--runs", tmp_path / "third")[1]


def test_a_run_without_a_step_is_answered_with_the_form(runs: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", str(runs / "fast")]) == 2
    assert f"name a step of the run: {runs / 'fast'}@STEP" in capsys.readouterr().err
    assert main(["data", "wher"]) == 2
    assert "there is no command 'wher' of `hornbook data`: RUN@STEP, where, affected" in capsys.readouterr().err


@pytest.mark.parametrize("group", ["data", "runs", "config", "recipes"])
def test_a_group_alone_shows_its_help_and_says_what_lacks(group: str, capsys: pytest.CaptureFixture[str]):
    assert main([group]) == 2
    out, err = capsys.readouterr()
    assert f"hornbook {group}" in out + err
    assert f"error a command is missing: choose one of those above, such as `hornbook {group} " in err
