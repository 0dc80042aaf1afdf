"""A run that a version of before made, under former names of settings, goes on and verifies."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hornbook
from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.settings import renamed

MODEL = ("model.attention.kind=latent", "model.attention.query_rank=none", "model.attention.kv_rank=16")
MODEL += ("model.attention.rope_dim=8", "model.attention.value_dim=16", "checkpoint.every=6")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as if nothing had been renamed yet."""
    folder = tmp_path_factory.mktemp("former")
    unfinished = shutil.ignore_patterns("*.pyc.*")  # which another process writes; bytecode of files that stay is kept
    shutil.copytree(Path(hornbook.__file__).parent, folder / "hornbook", ignore=unfinished)
    (folder / "hornbook" / "settings" / "renamed.toml").write_text("")
    names = {(key.rpartition(".")[2], new) for key, new in renamed.renamed_settings().items() if isinstance(new, str)}
    for path in (folder / "hornbook").rglob("*.py"):
        text = former = path.read_text()
        for name, new in names:
            former = former.replace(new, name)
        if former != text:
            path.write_text(former)
    return folder


def test_a_run_of_before_goes_on_and_verifies(tmp_path: Path, package: Path, tiny_settings: tuple[str, ...]) -> None:
    run = RunDir(tmp_path / "run")
    words = ["train", "--out", str(run.path), *tiny_settings, *MODEL, "model.attention.plain_dim=8"]
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from hornbook.cli.main import main"
    command = [sys.executable, "-c", f"{code}; sys.exit(main({words}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (config,) = run.checkpoints.glob("step-00000012/config.json")
    assert "plain_dim" in config.read_text()
    for file in (run.recipe, run.events, config):
        assert "plain_dim" in file.read_text()
        assert "nope_dim" not in file.read_text()

    assert main(["verify", str(run.path)]) == Exit.DONE
    assert main(["resume", str(run.path), "train.tokens=3k"]) == Exit.DONE
    newest = max(run.checkpoints.glob("step-*"))
    assert newest > config.parent
    assert json.loads((newest / "config.json").read_text())["hornbook"]["model"]["attention"]["nope_dim"] == 8
    assert main(["verify", str(run.path)]) == Exit.DONE
    settings = [word for word in tiny_settings if not word.startswith("model.")]
    assert main(["train", "--out", str(tmp_path / "next"), "--from", str(config.parent), *settings]) == Exit.DONE
