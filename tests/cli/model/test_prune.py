"""`hornbook prune`, healing, and the use of what it writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hornbook.cli.main import main
from hornbook.cli.model.sample_text import before_and_after
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.start.init_from import InitFrom


def test_a_pruned_model_is_an_ordinary_one_and_heals(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run, small, healed = tmp_path / "run", tmp_path / "small", tmp_path / "healed"
    assert main(["train", "--out", str(run), *tiny_settings, "model.layers=3"]) == Exit.DONE
    capsys.readouterr()
    command = ["prune", str(run), "--heads", "1", "--hidden", "32", "--layers", "2", "--rows", "8"]
    assert main([*command, "--out", str(small), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    before, after = found["before"], found["after"]
    assert after["parameters"] < before["parameters"]
    assert (
        after["bytes"]
        < before["bytes"]
        == (sorted((run / "checkpoints").glob("step-*/model.safetensors"))[-1]).stat().st_size
    )
    evaluated = json.loads(sorted((run / "evals").glob("*.json"))[-1].read_text())["all"]["loss"]
    assert before["loss"] == pytest.approx(evaluated, abs=1e-6)  # padding behind the last row does not count
    assert before["loss"] < after["loss"] < before["loss"] + 3
    assert len(found["layers"]) == 2
    assert main(["generate", str(small), "-p", "the", "--tokens", "3"]) == Exit.DONE
    words = [word for word in tiny_settings if not word.startswith("model.")]
    teacher = ["train.loss.teacher.kind=top", f"train.loss.teacher.path={run}", "train.loss.teacher.top=16"]
    assert main(["train", "--from", str(small), "--out", str(healed), *words, *teacher]) == Exit.DONE
    scores = [json.loads(path.read_text())["all"]["loss"] for path in sorted((healed / "evals").glob("*.json"))]
    assert scores[-1] < scores[0]
    capsys.readouterr()
    assert (
        main(["prune", str(healed), "--sparse", "2:4", "--out", str(tmp_path / "sparse"), "--rows", "2"]) == Exit.DONE
    )
    assert "tokens per second:" in capsys.readouterr().out


def test_too_few_heads_and_nothing_to_do_are_named(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "--out", str(run), *tiny_settings, "train.tokens=512"]) == Exit.DONE
    out = ["--out", str(tmp_path / "out")]
    for more, says in ((["--heads", "0"], "one at least must stay"), ([], "nothing to take out")):
        assert main(["prune", str(run), *out, *more]) == Exit.USAGE
        assert says in capsys.readouterr().err
    for command, says in (("prune --hidden 8", "MLP channels"), ("fisher --rows 2", "on 2 rows of")):
        verb, *more = command.split()
        assert main([verb, str(run), *out, *more, "--dry-run"]) == Exit.DONE
        assert says in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main(["fisher", str(run), "--out", str(tmp_path)]) == Exit.USAGE
    assert "a folder is there: name a file" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["lora", "freeze"])
def test_of_a_model_with_surgery_the_merged_weights_are_cut(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str], step: str
) -> None:
    """Importance needs gradients of weights that the run itself had frozen, and losses are of the same weights."""
    base, run, small = (tmp_path / name for name in ("base", "run", "small"))
    words = [word for word in tiny_settings if not word.startswith("model.")]
    assert main(["train", "--out", str(base), *tiny_settings, "train.tokens=512"]) == Exit.DONE
    chosen = {"lora": '["lora"]', "freeze": '[{kind = "freeze", names = ["blocks.*"]}]'}[step]
    start = ["train", "--from", str(base), "--out", str(run), *words, "train.tokens=512"]
    assert main([*start, f"surgery={chosen}"]) == Exit.DONE
    capsys.readouterr()
    assert main(["prune", str(run), "--heads", "1", "--rows", "2", "--out", str(small), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert main(["prune", str(run), "--heads", "2", "--rows", "2", "--out", str(tmp_path / "whole"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["before"]["loss"] == pytest.approx(whole["after"]["loss"])
    assert found["before"]["bytes"] > found["after"]["bytes"]
    assert found["after"]["parameters"] < found["before"]["parameters"] == whole["after"]["parameters"]


def test_what_was_set_to_zero_stays_so_while_the_rest_heals(
    tmp_path: Path, launch_run: Callable[..., Exit], branch: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Across a stop and a resume, bit for bit, though Muon moves every weight of a matrix."""
    run, sparse = tmp_path / "run", tmp_path / "sparse"
    assert launch_run(run) == Exit.DONE
    assert main(["prune", str(run), "--sparse", "2:4", "--rows", "4", "--out", str(sparse), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["zeros"] == 0.5
    assert found["before"]["loss"] < found["after"]["loss"]
    words = ("surgery=sparse", "optim.kind=muon", "optim.lr=0.01", "model.layers=1")
    init_from = InitFrom("import", sparse)
    assert launch_run(tmp_path / "whole", *words, init_from=init_from) == Exit.DONE
    assert "50.0% of the weights of sparse layers are 0 and stay so" in capsys.readouterr().err
    parts = RunDir(tmp_path / "parts").create()
    write_request(parts, Request(action="stop", at_step=5))
    assert launch_run(parts.path, *words, init_from=init_from) == Exit.RESUMABLE
    assert launch_run(parts.path, mode="resume") == Exit.DONE
    assert branch(parts.path) == branch(tmp_path / "whole")
    before, *after = (load_file(each / "model.safetensors") for each in map(checkpoint_path, (sparse, parts.path, run)))
    weight = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(before[weight] == 0, after[0][weight] == 0)
    assert not torch.equal(before[weight], after[0][weight])
    assert not (after[1][weight] == 0).any()
    with pytest.raises(UsageError, match="no weight is 0: start from what"):
        launch_run(tmp_path / "dense", *words, init_from=InitFrom("import", checkpoint_path(run)))


def test_sparsity_that_means_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", str(tmp_path), "--sparse", "half", "--out", str(tmp_path / "out")]) == Exit.USAGE
    assert "--sparse half: write 2:4 or 4:8" in capsys.readouterr().err


def test_what_was_not_measured_is_said_to_be() -> None:
    before = {"loss": 2.5, "tokens_per_second": float("nan")}
    assert before_and_after(before, before) == [
        "loss: 2.5000 -> 2.5000",
        "tokens_per_second: not measured -> not measured",
    ]
