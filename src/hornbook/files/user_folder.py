"""Folders outside of runs and data that hornbook keeps for a user: compiled kernels, measurements, known alerts."""

import os
from collections.abc import Mapping
from pathlib import Path


def user_folder(name: str, environ: Mapping[str, str] = os.environ, *, lasting: bool = False) -> Path | None:
    """The folder `name` in `$HORNBOOK_HOME`, else in `$XDG_CACHE_HOME/hornbook` (`~/.cache/hornbook`).

    lasting: in place of the cache, which a user may empty, `$XDG_STATE_HOME/hornbook` (`~/.local/state/hornbook`).
    None where the user has no home. It need not exist.
    """
    if home := environ.get("HORNBOOK_HOME"):
        return Path(home) / name
    variable, usual = ("XDG_STATE_HOME", ".local/state") if lasting else ("XDG_CACHE_HOME", ".cache")
    try:
        base = Path(environ.get(variable) or Path.home() / usual)
    except RuntimeError:
        return None
    return base / "hornbook" / name
