"""Runs that begin by other schemes than the default: what the recipe says is what is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.hf.hf import read_hf

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]


def weights(folder: Path, step: int = 4) -> dict[str, torch.Tensor]:
    return dict(read_hf(RunDir(folder).checkpoints / f"step-{step:08d}")[2])


def test_a_run_whose_weights_were_scaled_by_its_data(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    """It begins at sample 0 all the same, and is another run than one with unscaled weights; twice it is the same."""
    for name in ("a", "b"):
        assert launch_run(tmp_path / name, "model.init.kind=lsuv") == Exit.DONE
    assert launch_run(tmp_path / "c", "model.init.kind=normal") == Exit.DONE
    first, again, plain = (branch(tmp_path / name) for name in "abc")
    assert first[0]["first_sample"] == 0
    assert [record["loss"] for record in first] == [record["loss"] for record in again]
    assert [record["token_hash"] for record in first] == [record["token_hash"] for record in plain]
    assert first[0]["loss"] != plain[0]["loss"]


def test_mup_reaches_the_optimizer(tmp_path: Path, launch_run: Launch) -> None:
    """At m = 4 matrices move a quarter as far as under the plain scheme, embeddings as far."""

    def moved(name: str, *words: str) -> dict[str, float]:
        settings = ["optim.weight_decay=0", "optim.schedule.kind=constant", "checkpoint.every=1", *words]
        assert launch_run(tmp_path / name, *settings) == Exit.DONE
        before, after = weights(tmp_path / name, 1), weights(tmp_path / name, 2)
        return {key: float((after[key] - before[key]).abs().mean()) for key in before}

    width = read_hf(_any_checkpoint(tmp_path, launch_run))[0].width
    mup, plain = moved("mup", "model.init.kind=mup", f"model.init.base_width={width // 4}"), moved("plain")
    query, embedding = "blocks.0.attention.query.weight", "embedding.weight"
    assert mup[query] == pytest.approx(plain[query] / 4, rel=0.2)
    assert mup[embedding] == pytest.approx(plain[embedding], rel=0.2)


def _any_checkpoint(tmp_path: Path, launch_run: Launch) -> Path:
    assert launch_run(tmp_path / "any") == Exit.DONE
    return RunDir(tmp_path / "any").checkpoints / "step-00000004"


def test_an_override_about_nothing_stops_the_run_before_it_is_one(tmp_path: Path, launch_run: Launch) -> None:
    with pytest.raises(UsageError, match="is about no parameter"):
        launch_run(tmp_path / "run", 'model.init.overrides={"blocks.*.mpl.up" = {kind = "normal", std = 1}}')
    assert not (tmp_path / "run").exists()


def test_a_grown_model_goes_on_from_where_its_origin_stood(
    tmp_path: Path, launch_run: Launch, tiny_settings: tuple[str, ...], branch: Branch
) -> None:
    """Four layers for one and four experts in each: the first step sees the loss of the weights it came from."""
    assert launch_run(tmp_path / "dense") == Exit.DONE
    words = ["--layers", "4", "--experts", "4", "--active", "2", "--out", str(tmp_path / "grown")]
    assert main(["grow", str(tmp_path / "dense"), *words]) == Exit.DONE
    shape = ["model.layers=4", "model.mlp.kind=experts", "model.mlp.count=4"]
    for name, settings in (("dense", []), ("grown", shape)):
        out = ["--out", str(tmp_path / f"again-{name}"), "--from", str(tmp_path / name)]
        assert main(["train", *out, *tiny_settings, *settings]) == Exit.DONE
    dense, grown = branch(tmp_path / "again-dense"), branch(tmp_path / "again-grown")
    assert grown[0]["loss"] == pytest.approx(dense[0]["loss"], rel=1e-5)
    assert grown[-1]["loss"] != dense[-1]["loss"]
