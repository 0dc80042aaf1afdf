"""Muon, SOAP and Schedule-Free in runs: stopped, resumed, on other ranks, and what a run evaluates and saves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.model.surgery.folders import read_merged
from hornbook.settings.resolve import ConfigError, resolve
from tests.run.launcher import Launcher
from tests.run.ledger.test_interventions import ask
from tests.run.loop.test_outside_optimizer import last_bytes, stop_at

Branch = Callable[[Path], list[dict[str, Any]]]
Launch = Callable[..., Exit]
KINDS = {
    "muon": ("optim=muon", "optim.lr=3e-3", "optim.rest.lr=3e-3"),
    "soap": ("optim=soap", "optim.refresh_every=3"),
    "schedule_free": ("optim=schedule_free", "optim.schedule.warmup=4 steps"),
    "schedule_free_sgd": ("optim=schedule_free_sgd", "optim.lr=0.5"),
}
COMMON = ("model.width=64", "parallel.exact=true", "checkpoint.every=4")


def checkpoint(folder: Path) -> Path:
    return RunDir(folder).checkpoints / "step-00000012"


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_bit_for_bit(
    kind: str, tmp_path: Path, launch_run: Launch, launcher: Launcher, branch: Branch
) -> None:
    """In one process, then on two ranks that share the model, and in one process again."""
    words = (*KINDS[kind], *COMMON)
    assert launch_run(tmp_path / "whole", *words) == Exit.DONE
    losses = [step["loss"] for step in branch(tmp_path / "whole")]
    assert losses[-1] < losses[0]
    run = tmp_path / "run"
    stop_at(run, 5)
    assert launch_run(run, *words) == Exit.RESUMABLE
    for ranks, stop in ((2, 9), (1, None)):
        if stop is not None:
            stop_at(run, stop)
        started = launcher.start(
            ["resume", str(run), f"parallel.data={ranks}", "parallel.shard=everything"], tmp_path / "log"
        )
        assert started.wait() == (Exit.DONE if stop is None else Exit.RESUMABLE), started.text
    assert branch(run) == branch(tmp_path / "whole")
    assert last_bytes(run) == last_bytes(tmp_path / "whole")


def test_the_model_of_a_schedule_free_run_is_the_average(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of z and y, which the state holds; the loss that the run reports is that of the saved model."""
    run = tmp_path / "run"
    launch_run(run, *KINDS["schedule_free"], "model.width=64", "eval.every=12")
    state = load_file(checkpoint(run) / "trainer" / "optimizer.safetensors")
    for name, weight in read_merged(checkpoint(run))[2]:
        y, z = state[f"{name}.y"], state[f"{name}.z"]
        torch.testing.assert_close(weight, y + (1 / 0.9 - 1) * (y - z), rtol=0, atol=1e-6)
        assert not torch.equal(weight, y)
    ended = json.loads((RunDir(run).evals / "step-00000012.json").read_text())
    capsys.readouterr()
    assert main(["eval", str(run), "--json"]) == Exit.DONE
    scored = json.loads(capsys.readouterr().out)["loss"]
    assert ended.get("whole", ended)["all"]["loss"] == pytest.approx(scored, rel=1e-6)


def test_a_run_changes_to_schedule_free_and_back(
    tmp_path: Path, launch_run: Launch, launcher: Launcher, branch: Branch
) -> None:
    """It begins and goes on from the weights that are evaluated; on two ranks that share the model too."""
    words = (*COMMON, "optim.schedule=constant", "checkpoint.every=1")
    for name in ("whole", "ranks"):
        ask(tmp_path / name, 4, "optim.kind=schedule_free", "optim.lr=3e-3")
        ask(tmp_path / name, 8, "optim.kind=adamw", "optim.lr=1e-9", "optim.weight_decay=0")
    assert launch_run(tmp_path / "whole", *words) == Exit.DONE
    kept = {step: RunDir(tmp_path / "whole").checkpoints / f"step-{step:08d}" for step in (8, 12)}
    average, after = (dict(read_merged(folder)[2]) for folder in kept.values())
    for name, weight in average.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-6)
    stop_at(tmp_path / "ranks", 2)
    assert launch_run(tmp_path / "ranks", *words) == Exit.RESUMABLE
    resumed = ["resume", str(tmp_path / "ranks"), "parallel.data=2", "parallel.shard=everything"]
    started = launcher.start(resumed, tmp_path / "log")
    assert started.wait() == Exit.DONE, started.text
    assert branch(tmp_path / "ranks") == branch(tmp_path / "whole")
    assert last_bytes(tmp_path / "ranks") == last_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "key", "text"),
    [
        (("optim.schedule=cosine",), "optim.schedule.kind", 'set it to "constant"'),
        (("train.average=ema",), "train.average.kind", 'set it to "none"'),
    ],
)
def test_settings_that_do_not_fit_schedule_free_are_refused_before_the_run(
    words: tuple[str, ...], key: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, ["optim=schedule_free", *words], {})
    assert [problem.key for problem in caught.value.problems] == [key]
    assert text in str(caught.value)
    resolve(None, ["optim=schedule_free"], {})
