"""A process that compiles its kernels computes the same bits as one that reads them from numba's cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.files.run_directory import RunDir
from hornbook.run.doctor.compare_runs import compare_runs


@pytest.mark.slow
def test_the_first_process_on_a_machine_is_like_all_later_ones(tmp_path: Path, tiny_settings: tuple[str, ...]):
    """The first run of a person may be killed before its kernels are in the cache, and resumed with them there."""
    words = [*tiny_settings, "train.precision=bf16", "model.width=64", "model.dropout=0.1"]
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for name in ("cold", "warm"):
        command = [sys.executable, "-m", "hornbook.cli.main", "train", "--out", str(tmp_path / name), *words]
        subprocess.run(command, env=environ, check=True, capture_output=True)
        assert list((tmp_path / "cache").rglob("hornbook.model.cpu.*"))
    comparison = compare_runs(RunDir(tmp_path / "cold"), RunDir(tmp_path / "warm"))
    assert comparison.equal, comparison.to_json()
