"""Commands that messages propose: they can be typed, also where a path has blanks."""

import re
import shlex
from pathlib import Path

import pytest

from hornbook.cli.train.training import use_command
from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.run.start.directory import check_directory

SRC = Path(__file__).parents[1] / "src" / "hornbook"
PATHS = r"(?:\w+\.)*(?:path|root|folder|run|out|data|target|checkpoint|given|kept|file|model)"
PROPOSED = re.compile(rf"hornbook [a-z]+ [^`\"']*\{{(?:str\()?{PATHS}\)?(?: / [^}}]*)?\}}")
"""A command with a path in an f-string, as it is."""


def test_paths_in_proposed_commands_are_quoted() -> None:
    lines = [
        f"{path.relative_to(SRC)}: {line.strip()}"
        for path in SRC.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if PROPOSED.search(line)
    ]
    assert lines == []
    assert PROPOSED.search('f"next: hornbook resume {run.path}"')
    assert not PROPOSED.search('f"next: hornbook resume {quoted(run.path)}"')


def test_a_path_with_blanks_is_one_word(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "de mo")
    assert shlex.split(use_command("causal", str(run.path)))[2] == str(run.path)
    with pytest.raises(UsageError, match="holds no run") as caught:
        check_directory(run, "resume")
    command = re.search("`(.*)`", str(caught.value))
    assert command is not None
    assert shlex.split(command[1])[-1] == str(run.path)
    assert (quoted("runs/a"), quoted(Path("a b"))) == ("runs/a", "'a b'")
