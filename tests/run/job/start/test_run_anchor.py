"""Runs that hold the weights they start from."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hornbook.data.loader.loader as loading
from hornbook.cli.main import main
from hornbook.data.config.data import DataConfig
from hornbook.errors import Exit
from tests.run.launcher import Launcher


def terms(run: Path) -> list[dict[str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["terms"] | {"loss": line["loss"]} for line in lines]


def distance(run: Path, other: Path) -> float:
    one, two = (load_file(sorted((each / "checkpoints").glob("step-*/model.safetensors"))[-1]) for each in (run, other))
    return float(torch.stack([(one[name] - two[name]).square().sum() for name in one]).sum())


def test_weights_are_held_by_their_importance(
    tmp_path: Path, tiny_settings: tuple[str, ...], launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    base, fisher = tmp_path / "base", tmp_path / "fisher.safetensors"
    assert main(["train", "--out", str(base), *tiny_settings]) == Exit.DONE
    capsys.readouterr()
    assert main(["fisher", str(base), "--out", str(fisher), "--rows", "24", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["tokens"] > 600
    command = ["train", "--from", str(base), *tiny_settings, "seed=3", "train.tokens=1024"]
    hold = ["train.loss.anchor.kind=ewc", f"train.loss.anchor.fisher={fisher}", "train.loss.anchor.weight=300"]
    runs = {name: tmp_path / name for name in ("free", "held", "two")}
    assert main([*command, "--out", str(runs["free"])]) == Exit.DONE
    assert main([*command, *hold, "--out", str(runs["held"])]) == Exit.DONE
    assert distance(runs["held"], base) < distance(runs["free"], base) / 1.5
    losses = terms(runs["held"])
    assert losses[0]["anchor"] == 0 < losses[-1]["anchor"]
    started = launcher.start(
        [*command, *hold, "--out", str(runs["two"]), "parallel.data=2", "parallel.shard=everything"], tmp_path / "log"
    )
    assert started.wait() == 0, started.text
    for ours, theirs in zip(losses, terms(runs["two"]), strict=True):
        assert ours["anchor"] == pytest.approx(theirs["anchor"], rel=1e-3, abs=1e-9)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    fisher.unlink()  # the run has a copy
    capsys.readouterr()
    forked = ["fork", str(runs["held"]), "--out", str(tmp_path / "fork"), "--at", "4"]
    assert main(forked) == Exit.DONE, "a fork holds what its parent does"
    assert terms(tmp_path / "fork")[-1] == losses[-1]
    assert main(["replay", str(runs["held"])]) == Exit.DONE
    assert main(["resume", str(runs["held"]), "--train.tokens", "1280"]) == Exit.DONE


def test_a_fisher_of_another_model_is_refused(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken on rows as they are, whatever order and reach the run began with."""
    base, other, fisher = tmp_path / "base", tmp_path / "other", tmp_path / "fisher.safetensors"
    begun = [
        'data.curriculum={kind="difficulty", over_tokens=512}',
        'data.sequence_ramp={kind="linear", start_tokens=8, over_tokens=512}',
    ]
    for run, seed in ((base, 1), (other, 2)):
        assert (
            main(["train", "--out", str(run), *tiny_settings, *begun, f"seed={seed}", "train.tokens=512"]) == Exit.DONE
        )
    read, build = list[DataConfig](), loading.build_loader
    monkeypatch.setattr(
        loading, "build_loader", lambda config, *given, **how: read.append(config) or build(config, *given, **how)
    )
    assert main(["fisher", str(base), "--out", str(fisher), "--rows", "2"]) == Exit.DONE
    assert [(each.curriculum.kind, each.sequence_ramp.kind) for each in read] == [("none", "none")]
    monkeypatch.undo()
    hold = ["train.loss.anchor.kind=ewc", f"train.loss.anchor.fisher={fisher}"]
    capsys.readouterr()
    assert main(["train", "--from", str(other), *tiny_settings, *hold, "--out", str(tmp_path / "a")]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "taken at other weights than those of" in said
    assert "hornbook fisher" in said
    assert not (tmp_path / "a").exists(), "the same command with the right file starts the run"
    assert main(["train", *tiny_settings, *hold, "--out", str(tmp_path / "b")]) == Exit.USAGE
    assert "has nothing to hold" in capsys.readouterr().err
    lora = 'surgery=[{kind="lora", rank=2}]'
    assert main(["train", "--from", str(base), *tiny_settings, *hold, lora, "--out", str(tmp_path / "c")]) == Exit.USAGE
    assert "an adapter freezes the weights" in capsys.readouterr().err
