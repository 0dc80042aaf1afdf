"""The README's commands, run as they stand."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = [block.splitlines() for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)]


def environment(**more: str) -> dict[str, str]:
    """The shell of a user who has activated the environment, without a network."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | more


def commands(block: list[str]) -> list[str]:
    return [line.partition("#")[0].strip() for line in block if line.partition("#")[0].strip()]


def test_the_two_commands_are_targets_of_the_makefile():
    assert commands(BLOCKS[0]) == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert "demo: $(READY)\n\t$(BIN)/hornbook quickstart" in makefile
    assert "test: $(DEVELOP)\n\t$(BIN)/python -m pytest" in makefile


SHORTER = """
import sys
from dataclasses import replace
from hornbook.cli.start import demo
demo.SIZES[0] = replace(demo.SIZES[0], layers=1, width=64, heads=1, steps=80, corpus_bytes=600_000)
from hornbook.cli.main import main
sys.exit(main())
"""
"""`hornbook` with a model of a ninth of the parameters of xs, on a fifth of its text, for a quarter of its steps."""


@pytest.mark.parametrize(
    "program",
    [[sys.executable, "-c", SHORTER], pytest.param(["hornbook"], marks=pytest.mark.slow)],
    ids=["short", "xs"],
)
def test_the_demo_ends_well(tmp_path, program):
    """The quickstart at its smallest size: every promise of the film holds."""
    keep = tmp_path / "demo"
    done = subprocess.run(
        [*program, "quickstart", "--size", "xs", "--keep", str(keep), "--json"],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["resumed_loss_equal"] is True
    assert figures["dedup_precision"] == 1.0
    assert figures["dedup_recall"] == 1.0
    assert figures["certificate"]["ok"] is True
    assert figures["bits_per_byte"] < figures["baselines"]["unigram"]
    assert (keep / "model" / "model.safetensors").is_file()
    assert figures["text"].startswith("def")
    assert figures["text"].splitlines()[0] in done.stderr
    assert f'hornbook generate {keep / "run"} -p "def"' in done.stderr
    assert "\r" not in done.stderr
    assert "\x1b" not in done.stderr


def test_your_own_data_in_four_commands(tmp_path, launcher):
    """Exactly the README's lines, on this repository's own pages; the environment only shortens the training.

    The first is a process as in a shell, the others are forks of one that has imported what they need.
    """
    texts = tmp_path / "my-texts"
    shutil.copytree(ROOT / "docs", texts)
    for room in ("data", "evals", "files"):
        shutil.copytree(ROOT / f"src/hornbook/{room}", texts / room, ignore=shutil.ignore_patterns("__pycache__"))
    env = environment(HORNBOOK_SET="train.tokens=16384 eval.tokens=2048 model.layers=1")
    lines = commands(BLOCKS[1])
    assert len(lines) == 4
    done = subprocess.run(lines[0].split(), check=False, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in lines[1:]:
        program, *words = line.split()
        assert program == "hornbook"
        started = launcher.start(words, tmp_path / "log", environ=env, folder=tmp_path)
        assert started.wait() == 0, f"{line}\n{started.text}"
    assert (tmp_path / "my-model" / "certificate.json").is_file()
