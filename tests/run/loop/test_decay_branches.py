"""Decays of different length from one trunk: each is the run that decays there, and shares the trunk's bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
BRANCHES = {4: (768, "256 tokens"), 8: (1536, "512 tokens")}
"""Step of the trunk's checkpoint -> length of the run and of its decay. Steps have 128 tokens."""


def last_weights(folder: Path) -> bytes:
    return (sorted(RunDir(folder).checkpoints.glob("step-*"))[-1] / "model.safetensors").read_bytes()


def test_one_trunk_serves_decays_of_any_length(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    assert launch_run(tmp_path / "trunk", "optim.schedule=constant", "optim.schedule.warmup=3 steps") == Exit.DONE
    trunk = branch(tmp_path / "trunk")
    for step, (tokens, decay) in BRANCHES.items():
        words = ("--train.tokens", str(tokens), "--optim.schedule", "wsd", "--optim.schedule.decay", decay)
        fork = tmp_path / f"fork-{step}"
        assert main(["fork", str(tmp_path / "trunk"), "--at", str(step), "--out", str(fork), *words]) == Exit.DONE
        settings = (f"train.tokens={tokens}", "optim.schedule=wsd", f"optim.schedule.decay={decay}")
        whole = tmp_path / f"whole-{step}"
        assert launch_run(whole, *settings, "optim.schedule.warmup=3 steps") == Exit.DONE
        assert branch(whole)[:step] == trunk[:step]  # losses, norms, rates and tokens, to the bit
        assert branch(fork) == branch(whole)[step:]
        assert last_weights(fork) == last_weights(whole)
        rates = [each["lr"] for each in branch(fork)]
        assert rates[0] == 0.01
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] < 0.006
    shared = [
        load_file(RunDir(tmp_path / name).checkpoints / "step-00000004" / "model.safetensors")
        for name in ("trunk", "whole-8")
    ]
    assert all((shared[0][name] == shared[1][name]).all() for name in shared[0])


def test_a_schedule_that_does_not_fit_is_refused_before_the_run(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UsageError, match=r"optim\.schedule\.warmup: it ends after 2,560 tokens, and the run ends after"
    ):
        launch_run(tmp_path / "run", "optim.schedule.warmup=20 steps")
    assert not (tmp_path / "run").exists()
    assert launch_run(tmp_path / "run", "optim.schedule=constant") == Exit.DONE
    words = ("--out", str(tmp_path / "fork"), "--optim.schedule", "wsd", "--optim.schedule.decay", "2000 tokens", "-n")
    assert main(["fork", str(tmp_path / "run"), "--at", "4", *words]) == Exit.USAGE
    assert "optim.schedule.decay: with the warm-up it is longer than the run" in capsys.readouterr().err
    for words in (("optim.schedule=step", 'optim.schedule.points=["2M tokens"]'), ("optim.schedule.warmup=40 steps",)):
        with pytest.raises(UsageError, match="do not fit the length of the run"):
            launch_run(tmp_path / "run", *words, mode="resume")
    assert launch_run(tmp_path / "run", "log.every=2", mode="resume") == Exit.DONE


def test_a_run_goes_on_after_its_cosine_with_a_second_one(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    """Re-warm and re-decay with more tokens: from the floor up to the peak again, and down."""
    launch_run(tmp_path / "run", "train.tokens=1024")
    words = ("--train.tokens", "2048", "--optim.schedule", "cosine_restarts", "--optim.schedule.points", "1024 tokens")
    more = ("--optim.schedule.rewarm", "256 tokens", "--out", str(tmp_path / "more"))
    assert main(["fork", str(tmp_path / "run"), *words, *more]) == Exit.DONE
    rates = [step["lr"] for step in branch(tmp_path / "more")]
    assert rates == pytest.approx([0.001, 0.0055, 0.01, *rates[3:]])
    assert rates[2:] == sorted(rates[2:], reverse=True)
