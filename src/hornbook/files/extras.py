"""Optional packages: the command that installs an extra, from the source that hornbook was installed from."""

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]


def install_command(extra: str, root: Path = _ROOT) -> str:
    """A shell command that installs `extra`, from a package index only if hornbook was installed from one.

    root: the folder three levels above this file, which is the repository where hornbook runs from a clone.
    """
    if (root / "pyproject.toml").is_file() and (root / "src" / "hornbook").is_dir():
        what = ["-e", f"{root}[{extra}]"]
    else:
        what = _from_elsewhere(extra, _direct_url())
    return shlex.join([sys.executable, "-m", "pip", "install", *what])


def _from_elsewhere(extra: str, source: dict[str, Any]) -> list[str]:
    """The requirement for pip; `source`: direct_url.json (PEP 610), empty if hornbook came from an index."""
    url = str(source.get("url", ""))
    if not url:
        return [f"hornbook[{extra}]"]
    if "vcs_info" in source:
        url = f"{source['vcs_info'].get('vcs', 'git')}+{url}@{source['vcs_info'].get('commit_id', 'HEAD')}"
    return [f"hornbook[{extra}] @ {url}"]


def _direct_url() -> dict[str, Any]:
    try:
        text = metadata.distribution("hornbook").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    return json.loads(text) if text else {}
