"""`hornbook average`: means of checkpoints as a model folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.model.storage.load import load_model
from hornbook.run.checkpoints.lineage import FILE

Launch = Callable[..., Exit]


@pytest.fixture
def run(tmp_path: Path, launch_run: Launch) -> Path:
    """A run with checkpoints at steps 4, 8 and 12."""
    launch_run(tmp_path / "run")
    return tmp_path / "run"


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder).model.state_dict()


def step(run: Path, number: int) -> dict[str, torch.Tensor]:
    return tensors(RunDir(run).checkpoints / f"step-{number:08d}")


def test_the_last_checkpoints_of_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mean"
    capsys.readouterr()
    assert main(["average", str(run), "--last", "3", "--out", str(out), "--json"]) == Exit.DONE
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [Path(each).name for each in report["sources"]] == ["step-00000012", "step-00000008", "step-00000004"]
    parts, found = [step(run, number) for number in (4, 8, 12)], tensors(out)
    for name, tensor in found.items():
        assert torch.equal(tensor, (torch.stack([part[name].double() for part in parts]).sum(0) / 3).float())
    assert load_model(out).tokenizer is not None
    lineage = json.loads((out / FILE).read_text())
    assert (lineage["made_by"], lineage["from"]["name"], lineage["from"]["step"]) == ("average", "run", 12)
    assert "from" not in lineage["from"]
    (tmp_path / "held-out.txt").write_text("a text that nobody has seen, of some length. " * 20)
    assert main(["eval", str(out), "--data", str(tmp_path / "held-out.txt")]) == Exit.DONE


def test_weights_and_steps_by_name(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mean"
    assert main(["average", f"{run}@4", f"{run}@12", "--weights", "3,1", "--out", str(out)]) == Exit.DONE
    one, other, found = step(run, 4), step(run, 12), tensors(out)
    for name, tensor in found.items():
        assert torch.equal(tensor, (0.75 * one[name].double() + 0.25 * other[name].double()).float())


def test_runs_that_share_an_origin_are_all_in_the_lineage(run: Path, tmp_path: Path) -> None:
    for name, rate in (("b", "0.001"), ("c", "0.002")):
        words = ["--at", "4", "--out", str(tmp_path / name), "--optim.lr", rate]
        assert main(["fork", str(run), *words]) == Exit.DONE
    assert (
        main(["average", *(str(tmp_path / name) for name in "bc"), f"{run}@8", "--out", str(tmp_path / "m")])
        == Exit.DONE
    )
    source, found = json.loads((tmp_path / "m" / FILE).read_text())["from"], []
    while source is not None:
        found.append((source["name"], source["step"]))
        source = source.get("from")
    assert sorted(found) == [("b", 12), ("c", 12), ("run", 8)]


def test_what_cannot_be_averaged_is_refused(
    run: Path, tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch_run(tmp_path / "wide", "model.width=32")
    for words, text in (
        ([f"{run}@4"], "two or more different checkpoints"),
        ([f"{run}@4", f"{run}@4"], "two or more different checkpoints"),
        ([str(run), "--last", "9"], "has 3 checkpoints"),
        ([f"{run}@4", f"{run}@8", "--last", "2"], "--last takes the newest checkpoints of one run"),
        ([f"{run}@4", f"{run}@8", "--weights", "1"], "give 2 numbers above 0"),
        ([f"{run}@4", f"{run}@8", "--weights", "1,x"], "write numbers such as 1,2,1"),
        ([f"{run}@4", f"{run}@5"], "has no checkpoint of step 5"),
        ([str(run), str(tmp_path / "wide")], "they differ in model.width"),
    ):
        capsys.readouterr()
        assert main(["average", *words, "--out", str(tmp_path / "mean")]) == Exit.USAGE
        assert text in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "mean").exists()
    assert main(["average", str(run), "--last", "2", "--out", str(tmp_path / "mean"), "-n"]) == Exit.DONE
    assert not (tmp_path / "mean").exists()
