"""`scripts/pythons.sh`: every Python that is named is tried or said to be skipped."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "pythons.sh"


def run(folder: Path, *versions: str, make: str) -> subprocess.CompletedProcess[str]:
    """The script where Python 3.12 (alone) and a make that says its arguments are installed."""
    tools = folder / "bin"
    tools.mkdir()
    for name, body in (("python3.12", "echo 3.12"), ("make", f'echo "make $*"; {make}')):
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tools}:/usr/bin:/bin", "PYENV_ROOT": str(folder)}
    return subprocess.run(
        ["bash", str(SCRIPT), *versions], env=environment, capture_output=True, text=True, check=False
    )


def test_those_that_are_installed_are_tried_and_the_others_named(tmp_path: Path) -> None:
    done = run(tmp_path, "3.12", "3.19", make="exit 0")
    assert done.returncode == 0, done.stderr
    assert f"make test PYTHON={tmp_path}/bin/python3.12 VENV=.venv-3.12" in done.stdout
    assert "python 3.19: skipped, it is not installed" in done.stdout


def test_a_failure_is_the_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "3.12", make="exit 2")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "failed: 3.12")


def test_the_script_tries_what_the_classifiers_say() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert " ".join(said) in SCRIPT.read_text()
    assert project["requires-python"] == f">={said[0]}"
