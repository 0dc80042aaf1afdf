"""What is said to a person who continues a run: a spent time limit, a rate that jumps, data that moved."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.run_inputs import open_loader
from hornbook.settings.resolve import resolve
from tests.conftest import write_corpus

Launch = Callable[..., Exit]
Capture = pytest.CaptureFixture[str]
COSINE = ("optim.schedule.kind=cosine", "optim.schedule.floor=0.01", "optim.lr=0.02")


def told(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def finished(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps whose data are beside it, with a time limit of 50 seconds. Read only."""
    from tests.conftest import TINY_RUN

    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(tiny_corpus, folder / "data")
    words = [f"data.path={folder / 'data'}", *TINY_RUN, *COSINE, "train.seconds=50"]
    assert main(["train", "--out", str(folder / "run"), *words]) == Exit.DONE
    return folder


def copy(finished: Path, to: Path) -> Path:
    shutil.copytree(finished, to)
    return to / "run"


@pytest.mark.parametrize("more", [["-n"], []])
def test_a_longer_run_needs_time_that_its_limit_leaves(
    tmp_path: Path, finished: Path, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Two steps were trained, and `finished` was all that it said."""
    run = copy(finished, tmp_path / "copy")
    monkeypatch.setattr("hornbook.run.job.continuing.seconds_spent", lambda _: 49.4)
    before = RunDir(run).events.read_bytes()
    assert main(["resume", str(run), "--train.tokens", "3000", *more]) == Exit.USAGE
    assert (
        f"the time limit of {run} is 50 seconds for all attempts, 49 are spent: `hornbook resume {run} "
        "--train.tokens 3000 --train.seconds N` sets a longer one"
    ) in told(capsys)
    assert RunDir(run).events.read_bytes() == before
    assert main(["resume", str(run), "-n"]) == Exit.DONE, "a run as long as before may end"
    assert main(["resume", str(run), "--train.tokens", "3000", "--train.seconds", "none", "-n"]) == Exit.DONE


def test_a_rate_that_jumps_is_said_before_the_first_step(tmp_path: Path, finished: Path, capsys: Capture) -> None:
    run = copy(finished, tmp_path / "copy")
    words = ["resume", str(run), "--train.tokens", "3000", "--train.seconds", "none"]
    capsys.readouterr()
    assert main([*words, "-n", "--json"]) == Exit.DONE
    (warning,) = [each for each in json.loads(capsys.readouterr().out)["warnings"] if "learning rate" in each]
    assert f"`hornbook fork {run} --data DATA --out RUN2` re-warms it" in warning
    assert main(words) == Exit.DONE
    assert f"warning: {warning}" in RunDir(run).log.read_text()
    steps = {record["step"]: record["lr"] for record in map(json.loads, RunDir(run).metrics.read_text().splitlines())}
    rates = f"from 0.0002 to {steps[13]:.3g} (x {steps[13] / 0.0002:.3g})"
    assert steps[13] > 50 * 0.0002
    assert warning.startswith(f"the learning rate jumps {rates} after step 12, because the schedule")


def test_a_resume_whose_rate_follows_on_says_nothing(tmp_path: Path, finished: Path, capsys: Capture) -> None:
    run = copy(finished, tmp_path / "copy")
    capsys.readouterr()
    assert main(["resume", str(run), "--eval.every", "3", "-n", "--json"]) == Exit.DONE
    assert "jumps" not in capsys.readouterr().out


def test_data_that_moved_are_named_once(tmp_path: Path, finished: Path, capsys: Capture) -> None:
    run = copy(finished, tmp_path / "copy")
    data = tmp_path / "elsewhere"
    shutil.copytree(finished / "data", data)
    recipe = RunDir(run).recipe.read_text()
    gone = ["resume", str(run), "data.path=/gone"]
    assert main(gone) == Exit.USAGE
    said = told(capsys)
    assert f"/gone, the data of {run}, does not exist: if it was moved, `hornbook resume {run} --data FOLDER`" in said
    assert RunDir(run).recipe.read_text() == recipe
    words = ["resume", str(run), "--data", str(data), "--train.tokens", "1700", "--train.seconds", "none"]
    assert main(words) == Exit.DONE
    assert f'path = "{data}"' in RunDir(run).recipe.read_text()


def test_a_finished_run_is_given_more_data(tmp_path: Path, finished: Path, capsys: Capture) -> None:
    """Moments and clock stay, the rate rises from the old floor and falls to it, the new text is read once."""
    parent, child = finished / "run", tmp_path / "child"
    data = write_corpus(tmp_path / "more", seed=3)
    assert main(["fork", str(parent), "--data", str(data), "--out", str(child), "-n", "--json"]) == Exit.DONE
    planned = json.loads(capsys.readouterr().out)
    words = ["fork", str(parent), "--data", str(data), "--out", str(child), "--checkpoint.every", "1000"]
    assert main(words) == Exit.DONE
    for name in ("model.safetensors", "trainer/optimizer.safetensors"):
        ends = [(run / "checkpoints/step-00000012" / name).read_bytes() for run in (parent, child)]
        assert ends[0] == ends[1]
    steps = [json.loads(line) for line in RunDir(child).metrics.read_text().splitlines()]
    rows = sum(step["num_samples"] for step in steps)
    index = open_loader(resolve(str(RunDir(child).recipe), environ={}).recipe, str(data)).index
    assert rows * 32 == index.epoch_tokens(1) == planned["tokens"] - 1472
    assert steps[0]["step"] == 13
    assert steps[0]["first_sample"] % rows == 0, "one pass, from its beginning"
    assert [json.loads(line)["step"] for line in RunDir(parent).metrics.read_text().splitlines()][-1] == 12
    rates = [step["lr"] for step in steps]
    assert rates[0] == pytest.approx(0.0002)
    assert max(rates) == pytest.approx(0.02, rel=0.01)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(0.0002, rel=0.2)
    assert planned["epochs"] == {name: pytest.approx(1.0) for name in planned["epochs"]}, "of the new text"
    assert "steps see all of your" in planned["seen"]
    assert planned["seen"] in RunDir(child).log.read_text()
    capsys.readouterr()
    assert main(["resume", str(child), "-n", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["seen"] == planned["seen"]


def test_more_data_with_a_length_and_a_schedule_of_their_own(
    tmp_path: Path, finished: Path, tiny_corpus: Path, capsys: Capture
) -> None:
    words = [
        "fork",
        str(finished / "run"),
        "--data",
        str(tiny_corpus),
        "--out",
        str(tmp_path / "child"),
        "-n",
        "--json",
    ]
    capsys.readouterr()
    assert main([*words, "--train.tokens", "2000", "--optim.schedule", "constant"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["tokens"] == 2016
    assert main([*words, "--train.epochs", "2"]) == Exit.DONE
    twice = json.loads(capsys.readouterr().out)["tokens"]
    assert main(words) == Exit.DONE
    assert twice - 1472 == 2 * (json.loads(capsys.readouterr().out)["tokens"] - 1472)
    assert main([*words, "--train.tokens", "1400"]) == Exit.USAGE
    assert f"of which {finished / 'run'} has read 1,472: give more" in told(capsys)
    assert main([*words[:3], str(tmp_path / "no"), *words[4:]]) == Exit.USAGE
    assert f"{tmp_path / 'no'} does not exist" in told(capsys)
