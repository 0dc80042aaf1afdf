"""The command `hornbook`, and `python -m hornbook`."""

import os
import sys

_NO_WINDOWS = (
    "hornbook runs on Linux and macOS; on Windows use WSL: `wsl --install` in PowerShell, then install hornbook in it"
)


def main() -> int:
    """Run the command line; returns the exit code. Nothing is imported where it could not run."""
    if sys.platform in ("win32", "cygwin"):
        sys.stderr.write(f"error {_NO_WINDOWS}\n")
        return 2
    if os.environ.get("_HORNBOOK_COMPLETE") in ("complete_bash", "complete_zsh", "complete_fish"):
        from hornbook.cli.completion import complete

        return complete()
    from hornbook.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
