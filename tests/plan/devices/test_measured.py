"""Where measurements of this machine are."""

import os
import tempfile
from pathlib import Path

import pytest

from hornbook.kernels.folder import folders
from hornbook.plan.devices.measured import bench_folder
from tests.home import borrow_home


def test_a_test_neither_writes_nor_reads_what_the_user_measured() -> None:
    folder = bench_folder()
    assert folder is not None
    assert folder.is_relative_to(tempfile.gettempdir())


def test_a_borrowed_home_has_the_kernels_that_are_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path))
    with borrow_home() as home:
        assert os.environ["HORNBOOK_HOME"] == home
        assert next(folders()).resolve() == tmp_path / "kernels"
        assert bench_folder() == Path(home, "bench")
    assert (tmp_path / "kernels").is_dir()
