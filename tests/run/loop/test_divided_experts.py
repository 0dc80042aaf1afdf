"""One run whose experts are divided over 2, then 1, 3, then no ranks of the axis `expert`: the same global batches."""

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
    "model.layers=2",
    'model.mlp.kind="experts"',
    "model.mlp.count=5",
    "model.mlp.hidden=16",
    'model.mlp.router.kind="sigmoid"',
    "train.batch_tokens=384",
    "train.micro_batch=1",
    "train.tokens=4500",
    "checkpoint.every=0",
    "eval.every=4",
    "eval.tokens=100",
    "eval.prompt=the",
    "eval.sample_tokens=4",
)
"""11 steps of 12 microbatches and one of 9."""
LAYOUTS = (
    (3, ("parallel.expert=2",)),
    (5, ("parallel.expert=1",)),
    (7, ("parallel.expert=3",)),
    (9, ("parallel.expert=2", "parallel.data=2", "parallel.shard=everything")),
    (None, ("parallel.expert=1", "parallel.data=2", "parallel.shard=none")),
)
"""Where each ends, and its settings."""


def test_experts_may_be_divided_anew_at_every_start(
    launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path, branch: Branch
) -> None:
    """Weights and moments are read by other ranks than saved them; every rank takes part in evaluations and samples."""

    def go(folder: Path, stop: int | None, words: tuple[str, ...]) -> None:
        if stop is not None:
            (folder / "control").mkdir(parents=True, exist_ok=True)
            write_request(RunDir(folder), Request(action="stop", at_step=stop))
        begun = (folder / "recipe.toml").exists()
        verb = ["resume", str(folder)] if begun else ["train", "--out", str(folder), *tiny_settings, *SETTINGS]
        started = launcher.start([*verb, *words], tmp_path / f"{folder.name}.log")
        assert started.wait() == (Exit.DONE if stop is None else Exit.RESUMABLE), started.text

    go(tmp_path / "alone", None, ())
    for stop, words in LAYOUTS:
        go(tmp_path / "run", stop, words)
    alone, run = branch(tmp_path / "alone"), branch(tmp_path / "run")
    assert [step["token_hash"] for step in run] == [step["token_hash"] for step in alone]
    for name in ("loss", "gradient_norm"):
        assert [step[name] for step in run] == pytest.approx([step[name] for step in alone], rel=1e-4)
    for name in ("evals", "samples"):
        assert _records(tmp_path / "run", name).keys() == _records(tmp_path / "alone", name).keys()
    mine, theirs = _records(tmp_path / "run", "evals"), _records(tmp_path / "alone", "evals")
    for name, record in mine.items():
        assert record["all"]["loss"] == pytest.approx(theirs[name]["all"]["loss"], rel=1e-4)


def _records(run: Path, folder: str) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in (run / folder).glob("step-*.json")}
