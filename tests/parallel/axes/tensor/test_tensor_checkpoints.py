"""Checkpoints of models that ranks divide: the same bytes as of one process, read on any number of ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.ranks import RankServer

CASES = "tests/run/sharing.py"
STEP = "step-00000002"
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor": (2, {"data": 1, "tensor": 2}),
    "tensor and shard": (4, {"data": 2, "tensor": 2, "shard": "everything"}),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("llama", "tensor"),
        pytest.param("gpt2", "tensor and shard", marks=pytest.mark.slow),
        pytest.param("llama", "tensor and shard", marks=pytest.mark.slow),
        pytest.param("gpt2", "tensor", marks=pytest.mark.slow),
    ],
)
def test_saved_on_tensor_ranks_and_read_on_one_and_back(
    run_ranks: RankServer, tmp_path: Path, model: str, layout: str
) -> None:
    """The key-value head of `llama` is on both ranks; one of them saves it."""
    ranks, settings = LAYOUTS[layout]
    run_ranks(f"{CASES}:save", ranks, model, settings, str(tmp_path / "divided"), [1, 2])
    run_ranks(f"{CASES}:save", 1, model, {}, str(tmp_path / "alone"), [1, 2])
    assert contents(tmp_path / "divided") == contents(tmp_path / "alone")
    assert run_ranks(f"{CASES}:restore", 1, model, {}, str(tmp_path / "divided"), 2) == [[STEP, True, []]]
    told = run_ranks(f"{CASES}:restore", ranks, model, settings, str(tmp_path / "alone"), 2)
    assert told == [[STEP, True, []]] * ranks
