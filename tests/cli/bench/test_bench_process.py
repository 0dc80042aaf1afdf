"""`hornbook bench` with real processes and ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hornbook.kernels.folder import folders

pytestmark = pytest.mark.slow


def bench(home: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    home.mkdir()
    (home / "kernels").symlink_to(next(folders()))  # compiled already
    command = [sys.executable, "-m", "hornbook.cli.main", "bench", "--json", *words]
    environment = {**os.environ, "HORNBOOK_HOME": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_ranks_are_measured_in_processes_of_their_own(tiny_settings: tuple[str, ...], tmp_path: Path) -> None:
    sweep = ["--sweep", "parallel.data=1,2", "parallel.shard=none,everything", "--seconds", "0.2"]
    code, found, errors = bench(tmp_path / "home", *tiny_settings, *sweep)
    assert (code, errors) == (0, "")
    rows = {tuple(row["settings"].values()): row for row in found["sweep"]}
    assert all(row["refused"] is None for row in rows.values())
    for (ranks, _), row in rows.items():
        step = row["step"]
        assert step["ranks"] == len(step["by_rank"]) == int(ranks)
        assert (step["phases"]["communication"] > 0) == (ranks == "2")
        assert len(step["collectives"]) == (3 if ranks == "2" else 0)
        assert sum(step["phases"].values()) == pytest.approx(step["seconds"], rel=0.5)
    whole, shared = (rows["2", shard]["step"]["memory"] for shard in ("none", "everything"))
    assert shared["parameters"] < 0.6 * whole["parameters"]
    assert shared["optimizer"] < 0.6 * whole["optimizer"]


def test_an_error_of_a_rank_is_the_command_s_own(tiny_settings: tuple[str, ...], tmp_path: Path) -> None:
    words = ["parallel.data=2", "parallel.shard=everything", "parallel.exact=true", "--seconds", "0.2"]
    code, found, errors = bench(tmp_path / "home", *tiny_settings, *words, "model.width=12")
    assert (code, found) == (2, {})
    assert "parallel.exact" in errors
    assert "Traceback" not in errors
