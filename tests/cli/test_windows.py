"""Windows is refused in one line, before anything is imported that is not there."""

import subprocess
import sys

import pytest

CODE = """
import sys
sys.platform = {platform!r}
for name in ("fcntl", "resource", "termios", "typer", "torch", "numpy"):
    sys.modules[name] = None
from hornbook.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("platform", ["win32", "cygwin"])
def test_windows_is_refused_in_one_line(platform: str) -> None:
    command = [sys.executable, "-c", CODE.format(platform=platform), "train", "tiny"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "WSL" in done.stderr


def test_the_command_is_the_same_as_the_module() -> None:
    done = subprocess.run([sys.executable, "-m", "hornbook", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "hornbook")
