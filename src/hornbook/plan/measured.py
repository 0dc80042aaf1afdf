"""Where measurements of this machine stay (`hornbook bench`): the planner and runs read them. No torch.

`$HORNBOOK_HOME/bench`, else `$XDG_CACHE_HOME/hornbook/bench` (`~/.cache/hornbook/bench`); a folder for each device with
`machine.json`.
"""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from hornbook.files.filesystem import list_folder

FORMAT = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9.*]+")


def bench_folder() -> Path | None:
    """The folder of all measurements; None where the user has no home."""
    if home := os.environ.get("HORNBOOK_HOME"):
        return Path(home) / "bench"
    with contextlib.suppress(RuntimeError):
        named = os.environ.get("XDG_CACHE_HOME")
        return (Path(named) if named else Path.home() / ".cache") / "hornbook" / "bench"
    return None


def folder_name(name: str) -> str:
    """The name of a device as that of a folder."""
    return _UNSAFE.sub("-", name).strip("-")


def read_machine(pattern: str) -> list[dict[str, Any]]:
    """The saved measurements of devices whose name fits a pattern, in which * stands for anything; newest first."""
    folder = bench_folder()
    found = list[tuple[float, Any]]()
    with contextlib.suppress(OSError):
        for each in list_folder(folder, folder_name(pattern)) if folder is not None else []:
            with contextlib.suppress(OSError, ValueError):
                path = each / "machine.json"
                found.append((path.stat().st_mtime, json.loads(path.read_bytes())))
    newest = sorted(found, key=lambda each: -each[0])
    return [each for _, each in newest if isinstance(each, dict) and each.get("format") == FORMAT]
