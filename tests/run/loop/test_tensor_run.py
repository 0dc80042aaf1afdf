"""`hornbook train --parallel.tensor 2`: trained, evaluated, saved; resumed on one rank, and on others again."""

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
    "train.batch_tokens=384",
    "train.micro_batch=2",
    "train.tokens=4500",
    "checkpoint.every=0",
    "eval.every=6",
    "eval.tokens=100",
    "model.dropout=0.1",
)


@pytest.fixture
def go(launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path) -> Callable[..., str]:
    """Train or resume up to a step, or to the end; returns what was printed."""

    def run(folder: Path, stop: int | None, *words: str) -> str:
        if stop is not None:
            (folder / "control").mkdir(parents=True, exist_ok=True)
            write_request(RunDir(folder), Request(action="stop", at_step=stop))
        begun = (folder / "recipe.toml").exists()
        verb = ["resume", str(folder)] if begun else ["train", "--out", str(folder), *tiny_settings, *SETTINGS]
        started = launcher.start([*verb, *words], tmp_path / f"{folder.name}.log")
        assert started.wait() == (Exit.DONE if stop is None else Exit.RESUMABLE), started.text
        return started.text

    return run


@pytest.mark.slow
def test_tensor_ranks_come_and_go(tmp_path: Path, go: Callable[..., str], branch: Branch) -> None:
    go(tmp_path / "alone", None)
    layouts = [
        (4, "parallel.tensor=2"),
        (7, "parallel.tensor=1"),
        (9, "parallel.tensor=2", "parallel.sequence=true"),
        (None, "parallel.tensor=2", "parallel.data=2", "parallel.shard=everything"),
    ]
    for stop, *words in layouts:
        go(tmp_path / "run", stop, *words)
    alone, run = branch(tmp_path / "alone"), branch(tmp_path / "run")
    assert [step["token_hash"] for step in run] == [step["token_hash"] for step in alone]
    assert [step["loss"] for step in run] == pytest.approx([step["loss"] for step in alone], rel=1e-4)
    found, expected = (
        {path.name: json.loads(path.read_text())["all"]["loss"] for path in (tmp_path / name).glob("evals/step-*.json")}
        for name in ("run", "alone")
    )
    assert found == {name: pytest.approx(loss, rel=1e-4) for name, loss in expected.items()}


def test_heads_that_do_not_divide_are_refused(
    launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path
) -> None:
    words = ["train", "--out", str(tmp_path / "run"), *tiny_settings, "model.heads=3", "model.width=48"]
    started = launcher.start([*words, "parallel.tensor=2"], tmp_path / "run.log")
    assert started.wait() == Exit.USAGE
    assert "parallel.tensor" in started.text
    assert "3 heads (model.heads) do not divide among 2 ranks" in started.text
