"""On a CPU with AVX2 alone hornbook does what it does here: this machine shows itself as one to a child process."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from tests.cpus import AVX2
from tests.processes import ROOT

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="AVX2 is of x86")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"text": f"the model reads page {number} of {number % 7} books again and again"} for number in range(400)]
    path = tmp_path_factory.mktemp("text") / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """The folder in which the other CPU worked; `told.json` is what it said."""
    folder = tmp_path_factory.mktemp("there")
    command = [sys.executable, "-m", "tests.cli.other_cpu", str(folder), str(text)]
    done = subprocess.run(command, env=os.environ | AVX2, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "told.json").write_text(done.stdout.splitlines()[-1])
    (folder / "screen.txt").write_text(done.stderr)
    return folder


@pytest.fixture(scope="module")
def told(there: Path) -> dict[str, Any]:
    return json.loads((there / "told.json").read_text())


def test_it_is_another_cpu(told: dict[str, Any]) -> None:
    assert told["sees"] == "AVX2"
    assert told["auto"][0] == "fp32"


def test_auto_is_fp32_there_and_the_run_keeps_it(there: Path) -> None:
    recipe = (there / "run/recipe.toml").read_text()
    assert tomllib.loads(recipe)["train"]["precision"] == "fp32"
    assert "# auto: this CPU has no bf16 instructions" in recipe
    assert "fp32 (auto: this CPU has no bf16 instructions)" in (there / "screen.txt").read_text()


def test_bf16_asked_for_is_bf16_and_said_to_be_slow(there: Path, told: dict[str, Any]) -> None:
    assert told["bf16"] != told["losses"]
    assert told["bf16"] == pytest.approx(told["losses"], rel=0.01)
    assert tomllib.loads((there / "narrow/recipe.toml").read_text())["train"]["precision"] == "bf16"
    assert "bf16 is slow here (this CPU has no bf16 instructions)" in (there / "narrow/log.txt").read_text()


def test_a_resume_has_the_same_bits(told: dict[str, Any]) -> None:
    assert told["resumed"] == told["losses"]
    assert len(told["losses"]) == 10
    assert told["losses"][-1] < told["losses"][0]


def test_an_export_is_certified(told: dict[str, Any]) -> None:
    assert told["certificate"] is True


def test_tokens_are_the_same_on_every_cpu(there: Path, text: Path, tmp_path: Path) -> None:
    assert main(["prepare", str(text), "--out", str(tmp_path / "data")]) == Exit.DONE
    assert main(["tokenize", str(tmp_path / "data"), "--vocab", "300"]) == Exit.DONE
    for path in ("tokens/index.json", "tokenizer/tokenizer.json", "tokens/train/notes/00000.bin"):
        assert (tmp_path / "data" / path).read_bytes() == (there / "data" / path).read_bytes(), path


def test_a_run_goes_on_here_with_what_it_took_there(there: Path, tmp_path: Path) -> None:
    """The precision is the run's, not the machine's: it is not asked again."""
    run = there / "run"
    assert main(["fork", str(run), "--at", "8", "--out", str(tmp_path / "fork")]) == Exit.DONE
    assert tomllib.loads((tmp_path / "fork/recipe.toml").read_text())["train"]["precision"] == "fp32"
