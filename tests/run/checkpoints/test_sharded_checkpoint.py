"""Checkpoints across worlds: the same bytes from any number of ranks, read on any other; one rank fails, all know."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.model.hf.hf import read_hf
from hornbook.run.checkpoints.manifest import MANIFEST, verify_folder
from tests.ranks import RankError
from tests.run.sharing import MODELS

Ranks = Callable[..., list[Any]]
CASES = "tests/run/sharing.py"
LAYOUTS: dict[str, dict[str, Any]] = {
    "none": {},
    "optimizer": {"shard": "optimizer"},
    "everything": {"shard": "everything"},
    "hybrid": {"shard": "everything", "replicas": 2},
}
WORLDS = [(1, "none"), (2, "none"), (3, "everything"), (4, "hybrid"), (2, "optimizer")]
STEP = "step-00000002"
GRID = [
    pytest.param(model, *world, marks=[] if (number + column) % 2 == 0 else pytest.mark.slow)
    for number, world in enumerate(WORLDS)
    for column, model in enumerate(MODELS)
]
"""Each world with each model; the quick tests take the models in turn."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def saved(run_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, str], Path]:
    """The folder in which a world saved steps 1 and 2. Read only."""
    made: dict[tuple[str, int, str], Path] = {}

    def make(model: str, world: int, layout: str) -> Path:
        key = (model, world, layout)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("saved") / "checkpoints"
            sizes = run_ranks(f"{CASES}:save", world, model, LAYOUTS[layout], str(made[key]), [1, 2])
            whole = sum(tensor.numel() for _, tensor in read_hf(made[key] / STEP)[2])
            count = len(dict(read_hf(made[key] / STEP)[2]))
            assert [sum(each) for each in zip(*sizes, strict=True)] == [3 * whole + count] * 2, "each number once"
            assert max(max(each) for each in sizes) < (3 * whole + count) * 1.5 / world + 100, "shared out"
        return made[key]

    return make


@pytest.mark.parametrize(("model", "world", "layout"), GRID[len(MODELS) :])
def test_any_world_writes_the_bytes_of_one_process(
    saved: Callable[..., Path], model: str, world: int, layout: str
) -> None:
    expected, found = contents(saved(model, 1, "none")), contents(saved(model, world, layout))
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert {"latest", f"{STEP}/model.safetensors", f"{STEP}/trainer/optimizer.safetensors", f"{STEP}/{MANIFEST}"} <= (
        found.keys()
    )


@pytest.mark.parametrize(("model", "world", "layout"), GRID)
def test_any_world_reads_what_any_world_wrote(
    saved: Callable[..., Path], run_ranks: Ranks, model: str, world: int, layout: str
) -> None:
    folder = saved(model, *WORLDS[(WORLDS.index((world, layout)) + 2) % len(WORLDS)])
    told = run_ranks(f"{CASES}:restore", world, model, LAYOUTS[layout], str(folder), 2)
    assert told == [[STEP, True, []]] * world
    told = run_ranks(f"{CASES}:import_weights", world, model, LAYOUTS[layout], str(folder / STEP), 2)
    assert told == [[True]] * world


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)


def test_all_ranks_use_the_same_older_checkpoint_or_fail_alike(run_ranks: Ranks, tmp_path: Path) -> None:
    folder, words = tmp_path / "checkpoints", ("gpt2", LAYOUTS["everything"])
    assert run_ranks(f"{CASES}:restore", 2, *words, str(folder), 0) == [[None, False, []]] * 2, "nothing there"
    run_ranks(f"{CASES}:save", 2, *words, str(folder), [1, 2])
    flip(folder / STEP / "trainer" / "optimizer.safetensors")
    told = run_ranks(f"{CASES}:restore", 2, *words, str(folder), 1)
    assert told == [["step-00000001", True, ["checkpoint_damaged"]], ["step-00000001", True, []]]
    flip(folder / "step-00000001" / "model.safetensors")
    first, second = run_ranks(f"{CASES}:restore", 2, *words, str(folder), 1)
    assert first == second
    assert first[0] == "IntegrityError"
    assert "step-00000001: model.safetensors is damaged" in first[1]


@pytest.mark.parametrize(
    ("rank", "call"), [(0, "posix_fallocate"), (0, "pwrite"), (0, "rename"), (1, "open"), (1, "pwrite"), (1, "fsync")]
)
def test_what_fails_on_one_rank_fails_the_save_on_all(run_ranks: Ranks, tmp_path: Path, rank: int, call: str) -> None:
    leader, other = run_ranks(f"{CASES}:fail", 2, LAYOUTS["everything"], str(tmp_path), rank, call)
    saves = [leader[0], leader[2], leader[4]]
    assert saves[0] == other[0] == "step-00000001"
    assert saves[1][0] == other[1][0] == "StorageError"
    assert saves[1][1] == other[1][1], "the same text"
    assert ("rank 1: " in saves[1][1]) == (rank == 1)
    assert "No space left on device; free some space" in saves[1][1]
    assert saves[2] == other[2] == "step-00000003"
    assert leader[1::2] == [["step-00000001"], ["step-00000001"], ["step-00000001", "step-00000003"]], "and no litter"


@pytest.mark.parametrize(
    ("rank", "when"),
    [(0, 2), pytest.param(0, 30, marks=pytest.mark.slow), pytest.param(1, 1, marks=pytest.mark.slow), (1, 30)],
)
def test_a_rank_killed_while_writing_leaves_the_older_checkpoint(
    run_ranks: Ranks, tmp_path: Path, rank: int, when: int
) -> None:
    with pytest.raises(RankError, match=f"rank {rank} died of SIGKILL"):
        run_ranks(f"{CASES}:die", 2, LAYOUTS["everything"], str(tmp_path), rank, when)
    assert any(path.name.startswith(".tmp-step-00000002") for path in tmp_path.iterdir())
    told = run_ranks(f"{CASES}:restore", 3, "gpt2", LAYOUTS["everything"], str(tmp_path), 1)
    assert [each[:2] for each in told] == [["step-00000001", True]] * 3
    assert told[0][2] == ["litter_removed"]
    assert verify_folder(tmp_path / "step-00000001").step == 1


def test_a_rank_that_leaves_waits_for_nobody(run_ranks: Ranks, tmp_path: Path) -> None:
    leader, other = run_ranks(f"{CASES}:leave", 2, str(tmp_path))
    assert leader == ["RankLostError", "rank 1 did not do its part of a checkpoint", []]
    assert other == ["RankLostError", leader[1]], "the leader tells the others, whenever they hear it"
