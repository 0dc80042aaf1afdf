"""A home of hornbook's for the time of the tests: what their runs measure is not the user's, and theirs is not read."""

import os
import tempfile
from pathlib import Path

from hornbook.kernels.folder import folders


def borrow_home() -> "tempfile.TemporaryDirectory[str]":
    """Name an empty home in the environment, until the one returned is gone; compiled kernels stay where they are."""
    kernels = next(folders()).resolve()
    home = tempfile.TemporaryDirectory(prefix="hornbook-home-")
    if "NUMBA_CACHE_DIR" not in os.environ:
        kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(home.name, "kernels").symlink_to(kernels)
    os.environ["HORNBOOK_HOME"] = home.name
    return home
