"""One run on 4, then 2, then 1, then 3 ranks: the same global batches; and with exact sums the same bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from tests.run.launcher import Launcher

Branch = Callable[[Path], list[dict[str, Any]]]
SETTINGS = (
    "model.width=64",
    "train.batch_tokens=384",
    "train.micro_batch=1",
    "train.tokens=4500",
    "checkpoint.every=0",
    "eval.every=3",
    "eval.tokens=100",
)
"""11 steps of 12 microbatches and one of 9, which neither 2 nor 4 ranks can share evenly."""


@pytest.fixture
def go(launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path) -> Callable[..., None]:
    """Train or resume up to a step: go(folder, ranks, stop, "key=value", ...); stop None goes to the end."""

    def run(folder: Path, ranks: int, stop: int | None, *words: str) -> None:
        if stop is not None:
            (folder / "control").mkdir(parents=True, exist_ok=True)
            write_request(RunDir(folder), Request(action="stop", at_step=stop))
        begun = (folder / "recipe.toml").exists()
        verb = ["resume", str(folder)] if begun else ["train", "--out", str(folder), *tiny_settings, *SETTINGS]
        started = launcher.start([*verb, f"parallel.data={ranks}", *words], tmp_path / f"{folder.name}.log")
        assert started.wait() == (Exit.DONE if stop is None else Exit.RESUMABLE), started.text

    return run


@pytest.fixture(scope="module")
def alone(train_whole: Callable[..., Path]) -> Path:
    """The run of one rank. Read only."""
    return train_whole(*SETTINGS)


def validation(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each evaluation, by its file: a digest of the rows it read, and their loss."""
    records = {path.name: json.loads(path.read_text()) for path in folder.glob("evals/step-*.json")}
    return {name: {"rows": record["rows"], **record["all"]} for name, record in records.items()}


def final_bytes(folder: Path) -> dict[str, bytes]:
    """Weights and moments of the last checkpoint."""
    (last,) = folder.glob("checkpoints/step-00000012")
    return {path.name: path.read_bytes() for path in last.rglob("*.safetensors")}


@pytest.mark.parametrize("shard", ["none", "everything"])
def test_ranks_may_come_and_go(
    tmp_path: Path,
    go: Callable[..., None],
    alone: Path,
    branch: Branch,
    events: Callable[[Path], list[dict[str, Any]]],
    shard: str,
) -> None:
    for ranks, stop in ((4, 3), (2, 6), (1, 9), (3, None)):
        go(tmp_path / "run", ranks, stop, f"parallel.shard={shard}")
    whole, run = branch(alone), branch(tmp_path / "run")
    assert [step["token_hash"] for step in run] == [step["token_hash"] for step in whole]
    assert [step["loss"] for step in run] == pytest.approx([step["loss"] for step in whole], rel=1e-4)
    mine, theirs = validation(tmp_path / "run"), validation(alone)
    assert sorted(mine) == sorted(theirs) == [f"step-{step:08d}.json" for step in (3, 6, 9, 12)]
    for name, found in mine.items():
        assert found == theirs[name] | {key: pytest.approx(found[key], rel=1e-4) for key in ("loss", "bits_per_byte")}
        assert 0 < found["read"] < found["of"]
    changes = [change for record in events(tmp_path / "run") for change in record.get("changes", ())]
    assert [(change["key"], change["new"]) for change in changes] == [("parallel.data", ranks) for ranks in (2, 1, 3)]


@pytest.mark.slow
def test_a_run_may_go_on_under_other_axes(tmp_path: Path, go: Callable[..., None], branch: Branch) -> None:
    """Sharded, then matrices divided, then stages, then sharded on three ranks: the same batches, the same losses."""
    model = ("model.layers=2",)
    go(tmp_path / "alone", 1, None, *model)
    for ranks, shard, tensor, stages, stop in (
        (2, "everything", 1, 1, 3),
        (1, "none", 2, 1, 6),
        (1, "none", 1, 2, 9),
        (3, "everything", 1, 1, None),
    ):
        words = (f"parallel.shard={shard}", f"parallel.tensor={tensor}", f"parallel.pipeline={stages}")
        go(tmp_path / "run", ranks, stop, *model, *words)
    alone, run = branch(tmp_path / "alone"), branch(tmp_path / "run")
    assert [step["token_hash"] for step in run] == [step["token_hash"] for step in alone]
    assert [step["loss"] for step in run] == pytest.approx([step["loss"] for step in alone], rel=1e-4)
    mine, theirs = validation(tmp_path / "run"), validation(tmp_path / "alone")
    assert {name: each["rows"] for name, each in mine.items()} == {name: each["rows"] for name, each in theirs.items()}


@pytest.mark.parametrize(
    "shard", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("none", "gradients")), "everything"]
)
def test_exact_sums_have_the_same_bits_on_one_two_and_four_ranks(
    tmp_path: Path, go: Callable[..., None], branch: Branch, shard: str
) -> None:
    go(tmp_path / "alone", 1, None, "parallel.exact=true")
    for ranks, stop in ((4, 4), (2, 8), (1, 10), (4, None)):
        go(tmp_path / "run", ranks, stop, "parallel.exact=true", f"parallel.shard={shard}")
    assert branch(tmp_path / "run") == branch(tmp_path / "alone")
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "alone")
