"""Commands as child processes: `python -m hornbook.cli.child PARENT WORDS...` ends with the process PARENT, even by
SIGKILL."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hornbook.errors import Exit, HornbookError


def command(*words: str | Path) -> list[str]:
    """The argv of a child process that runs a command and is killed when this process ends."""
    return [sys.executable, "-m", "hornbook.cli.child", str(os.getpid()), *map(str, words)]


def hornbook(*words: str | Path, capture: bool = False) -> str:
    """Run a command in a child process, its messages on our stderr; returns its stdout if `capture`."""
    done = subprocess.run(command(*words), check=False, text=True, stdout=subprocess.PIPE if capture else None)
    require_done(words, done.returncode)
    return done.stdout if capture else ""


def require_done(words: Sequence[object], code: int) -> None:
    """Raise HornbookError, of the same exit code, for a command that did not end well."""
    if code:
        failed = HornbookError(f"`hornbook {' '.join(map(str, words))}` ended with exit code {code}")
        failed.exit_code = Exit(code) if code in set(Exit) else Exit.DEFECT
        raise failed


if __name__ == "__main__":
    from hornbook.cli.main import main
    from hornbook.run.launch.rank import die_with

    die_with(int(sys.argv.pop(1)))
    sys.exit(main())
