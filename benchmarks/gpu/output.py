"""The arguments of a part's process and its file of figures. Imports no torch."""

import json
import os
import sys
from pathlib import Path
from typing import Any


class Output:
    """The file of a part's figures."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.before: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        """Figures that an earlier process of this part wrote."""

    def write(self, figures: dict[str, Any]) -> None:
        """Replace the figures; a process that is killed leaves the former file or the new one."""
        write_json(self._path, figures)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write the file whole, or not at all."""
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(beside, path)


def arguments() -> tuple[Output, dict[str, Any]]:
    """Output and specification of this process."""
    return Output(sys.argv[1]), json.loads(sys.argv[2])
