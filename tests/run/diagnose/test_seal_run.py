"""A seal is whole, or says which file is not."""

import json
import shutil
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.diagnose.seal_run import SEAL, check_seal, seal_run

TOKEN = "ghp_" + "aB3dE6gH9j" * 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> RunDir:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["-q", "train", "--out", str(folder), *tiny_settings]) == 0
    return RunDir(folder)


@pytest.fixture
def seal(run: RunDir, tmp_path: Path) -> Path:
    seal_run(run, tmp_path / "seal")
    return tmp_path / "seal"


def bad(folder: Path) -> dict[str, str]:
    return {finding.what: finding.text for finding in check_seal(folder).findings if not finding.ok}


def test_a_seal_is_whole_and_the_same_each_time(run: RunDir, seal: Path, tmp_path: Path) -> None:
    assert bad(seal) == {}
    again = seal_run(run, tmp_path / "again")
    assert (tmp_path / "again" / SEAL).read_bytes() == (seal / SEAL).read_bytes()
    assert {"recipe.toml", "env.json", "data.lock", "events.jsonl", "metrics.jsonl", "data/tokens/index.json"} <= set(
        again["files"]
    )
    assert "manifests/step-00000012/MANIFEST.json" in again["files"]
    assert not any(name.endswith(".safetensors") for name in again["files"])


def test_with_weights_the_newest_checkpoint_is_checked(run: RunDir, tmp_path: Path) -> None:
    assert main(["seal", str(run.path), "--out", str(tmp_path / "seal"), "--weights"]) == 0
    assert main(["seal", "--check", str(tmp_path / "seal")]) == 0
    path = tmp_path / "seal" / "checkpoints" / "step-00000012" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert set(bad(tmp_path / "seal")) == {"files", "step-00000012"}
    assert main(["seal", "--check", str(tmp_path / "seal")]) == 3


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("env.json", {"files"}),
        ("recipe.toml", {"files", "recipe"}),
        ("metrics.jsonl", {"files", "metrics"}),
        ("events.jsonl", {"files", "ledger"}),
        ("manifests/step-00000012/MANIFEST.json", {"files", "manifest step-00000012"}),
        (SEAL, {"head"}),
    ],
)
def test_a_changed_file_is_named(seal: Path, name: str, parts: set[str]) -> None:
    text = (seal / name).read_text()
    number = next(each for each in ("0.01", "5.", "4.", "1") if each in text)
    (seal / name).write_text(text.replace(number, number.replace(number[0], "7", 1), 1))
    found = bad(seal)
    assert set(found) == parts
    assert name == SEAL or name in found["files"]


def test_files_that_go_or_come_are_named(seal: Path) -> None:
    (seal / "env.json").unlink()
    (seal / "more.txt").write_text("?")
    assert bad(seal)["files"] == "more.txt was added; env.json is gone"


def test_a_list_with_a_name_outside_opens_nothing(seal: Path) -> None:
    """The head is of no key: who changes the list can make another, so its names are input like any other."""
    from hornbook.run.diagnose.seal_run import _head

    made = json.loads((seal / SEAL).read_text())
    made["files"]["../../secret"] = made["files"]["env.json"]
    del made["head"]
    (seal / SEAL).write_text(json.dumps(made | {"head": _head(made)}))
    assert "not a name inside the folder" in bad(seal)["files"]


def test_damaged_runs_and_runs_with_secrets_are_not_sealed(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    env = json.loads(copy.env.read_text())
    copy.env.write_text(json.dumps(env | {"argv": ["train", f"--hub={TOKEN}"]}))
    seal_run(copy, tmp_path / "seal")
    assert "[hidden]" in (tmp_path / "seal" / "env.json").read_text()
    assert not any(TOKEN.encode() in path.read_bytes() for path in (tmp_path / "seal").rglob("*") if path.is_file())
    with copy.metrics.open("a") as file:
        file.write(json.dumps({"attempt": 1, "step": 13, "tokens": 0, "loss": 1.0, "note": TOKEN}) + "\n")
    with pytest.raises(IntegrityError, match=r"metrics.jsonl:13 holds what looks like a password or token"):
        seal_run(copy, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    shutil.rmtree(copy.checkpoints / "step-00000012" / "trainer")
    with pytest.raises(IntegrityError, match="is damaged, so it is not sealed: step-00000012"):
        seal_run(copy, tmp_path / "no")
    with pytest.raises(UsageError, match="is there already"):
        seal_run(run, tmp_path / "seal")
    with pytest.raises(UsageError, match=r"has no SEAL\.json"):
        check_seal(run.path)
