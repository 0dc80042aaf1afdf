"""Memory by category and the snapshot of a step: what is measured is the closed form, and measuring changes nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.model.config.parameter_count import count_parameters
from hornbook.plan.counts.share import activation_bytes
from hornbook.run.checkpoints.bound import recipe_in_force

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
PLAIN = ("data.document_mask=false", "train.micro_batch=4")


@pytest.mark.parametrize("recompute", ["none", "block", "selective"])
def test_categories_are_those_of_arithmetic(tmp_path: Path, launch_run: Launch, branch: Branch, recompute: str) -> None:
    run, words = RunDir(tmp_path / "run"), (*PLAIN, f"parallel.recompute={recompute}")
    launch_run(run.path, *words, "log.memory_every=5", "log.memory_snapshot=5")
    found = list(read_records(run.memory))
    assert [record["step"] for record in found] == [5, 10]
    recipe = recipe_in_force(run)
    vocab = recipe.model.vocab
    assert vocab is not None
    parameters, kept = count_parameters(recipe.model, vocab), activation_bytes(recipe, vocab, 4)
    for record in found:
        assert (record["parameters"], record["gradients"]) == (4 * parameters, 4 * parameters)
        assert 0 <= record["optimizer"] - 8 * parameters < 100  # and a counter for each parameter
        assert record["activations"] == kept.total
        assert record["used"] <= record["peak"]
    snapshot = json.loads((run.path / "memory-00000005.json").read_bytes())
    assert snapshot["bytes"] == sum(row["bytes"] for row in snapshot["saved"]) == kept.total
    launch_run(tmp_path / "plain", *words)
    assert branch(run.path) == branch(tmp_path / "plain")


def test_a_snapshot_names_modules(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", *PLAIN, "log.memory_snapshot=2")
    assert not RunDir(tmp_path / "run").memory.exists()
    rows = json.loads((tmp_path / "run" / "memory-00000002.json").read_bytes())["saved"]
    assert {"blocks.0.attention", "blocks.0.mlp", "blocks.0.norm1"} <= {row["module"] for row in rows}
    assert {(row["dtype"], len(row["shape"])) for row in rows} >= {("float32", 3)}
