"""`hornbook tell`: what is asked is checked at once, written as one file, and met by the run."""

import json
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request


@pytest.fixture
def run(tmp_path: Path, tiny_settings: tuple[str, ...]) -> RunDir:
    """A run that was stopped after step 3."""
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=3))
    assert main(["train", "--out", str(run.path), *tiny_settings]) == Exit.RESUMABLE
    return run


def requests(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(run.control.iterdir())]


def interventions(run: RunDir) -> list[dict[str, Any]]:
    return [record for record in read_records(run.events) if record["kind"] == "intervention"]


def test_a_run_that_goes_on_does_what_it_was_told(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tell", str(run.path), "optim.lr=1e-3", "--optim.clip", "0.5", "--at", "+2", "--reason", "spikes"]
    assert main([*command, "-n"]) == Exit.DONE
    assert requests(run) == []
    capsys.readouterr()
    assert main(command) == Exit.DONE
    text = capsys.readouterr().out
    assert "is asked, after step 5; it is stopped, and is told when it goes on" in text
    assert "optim.lr 0.01 -> 0.001" in text
    assert "the rate of the next step is 0.1 times what the schedule has there; the run's log says it" in text
    (request,) = requests(run)
    assert request["settings"] == ["optim.lr=1e-3", "optim.clip=0.5"]
    assert (request["action"], request["at_step"], request["reason"]) == ("set", 5, "spikes")
    assert main(["resume", str(run.path)]) == Exit.DONE
    (made,) = interventions(run)
    assert (made["step"], made["reason"]) == (5, "spikes")
    capsys.readouterr()
    assert main(["runs", "show", str(run.path)]) == Exit.DONE
    assert "step 5  intervention  reason spikes, text optim.lr 0.01 -> 0.001" in capsys.readouterr().out
    assert main(["verify", str(run.path)]) == Exit.DONE
    assert "1 changes while the run trained; learning rate and batch of 12 steps" in capsys.readouterr().out
    assert main(["tell", str(run.path), "optim.lr=1e-4"]) == Exit.USAGE
    assert "has finished" in capsys.readouterr().err


def test_save_and_stop(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["tell", str(run.path), "save", "--at", "5", "--json"]) == Exit.DONE
    value = json.loads(capsys.readouterr().out)
    assert (value["action"], value["at_step"], value["changes"]) == ("save", 5, [])
    assert main(["tell", str(run.path), "stop", "--at", "6"]) == Exit.DONE
    assert main(["resume", str(run.path)]) == Exit.RESUMABLE
    assert {path.name for path in run.checkpoints.glob("step-*")} >= {"step-00000005", "step-00000006"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["optim.lrr=1"], "did you mean optim.lr"),
        (["model.width=32"], "cannot change while the run trains"),
        (["optim.lr=1e-3", "save"], "say one thing"),
        (["dance"], "say one thing"),
        ([], "say one thing"),
        (["save", "--at", "2"], "the run is at step 3 already"),
        (["save", "--at", "soon"], "write a step such as 1200"),
        (["model.mlp.activation=relu", "--blend", "a while"], "--blend cannot read 'a while' as a duration"),
        (["model.mlp.activation=sine"], "model.mlp.activation"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    run: RunDir, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    capsys.readouterr()
    assert main(["tell", str(run.path), *words]) == Exit.USAGE
    assert problem in capsys.readouterr().err
    assert requests(run) == []


def test_there_must_be_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tell", str(tmp_path), "save"]) == Exit.USAGE
    assert "holds no run" in capsys.readouterr().err
    assert main(["tell"]) == Exit.USAGE


def test_a_fork_has_the_settings_of_its_checkpoint(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a change at step 5 the checkpoint of step 4 knows nothing; inside a rise of the rate there is no fork."""
    assert main(["tell", str(run.path), "optim.lr=1e-3", "--at", "5", "--rewarm", "4 steps"]) == Exit.DONE
    assert main(["resume", str(run.path)]) == Exit.DONE
    rates = {}
    for step in (4, 12):
        fork = RunDir(run.path.with_name(f"fork-{step}"))
        words = ["--at", str(step), "--out", str(fork.path), "--optim.clip", "0.7", "--train.tokens", "1600"]
        assert main(["fork", str(run.path), *words]) == Exit.DONE
        text = fork.recipe.read_text()
        rates[step] = "lr = 0.01 " in text, "lr = 0.001 " in text, "limit = 0.7 " in text
    assert rates == {4: (True, False, True), 12: (False, True, True)}
    capsys.readouterr()
    assert main(["fork", str(run.path), "--at", "8", "--out", str(run.path.with_name("other"))]) == Exit.USAGE
    assert "inside the change of step 5" in capsys.readouterr().err
