"""Averages of the weights of a run: saved, resumed to the bit, on other ranks, evaluated, exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hornbook.cli.main import main
from hornbook.errors import Exit, IntegrityError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.storage.load import load_model
from hornbook.model.surgery.folders import AVERAGE, read_merged
from hornbook.parallel.offload import offload
from hornbook.parallel.parameter_shard import Shard
from hornbook.parallel.world import World
from hornbook.run.checkpoints.state import _read_shards
from hornbook.run.job.control import Request, write_request
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
EMA = ("train.average=ema", "train.average.decay=0.7")
EVERY_STEP = ("checkpoint.every=1",)


def checkpoint(folder: Path, step: int) -> Path:
    return RunDir(folder).checkpoints / f"step-{step:08d}"


def average(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(checkpoint(folder, step) / AVERAGE)


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return dict(read_merged(checkpoint(folder, step))[2])


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_of_a_run_is_that_of_its_checkpoints(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "plain", *EVERY_STEP)
    launch_run(tmp_path / "run", *EVERY_STEP, *EMA)
    assert branch(tmp_path / "run") == branch(tmp_path / "plain")  # it only looks
    found = average(tmp_path / "run", 12)
    expected = average(tmp_path / "run", 1)
    for step in range(2, 13):
        now = weights(tmp_path / "run", step)
        expected = {name: 0.7 * each + 0.3 * now[name] for name, each in expected.items()}
    assert found.keys() == weights(tmp_path / "run", 12).keys()
    for name, each in found.items():
        torch.testing.assert_close(each, expected[name])
    assert not (checkpoint(tmp_path / "plain", 12) / AVERAGE).exists()


OFFLOAD = ("parallel.offload=disk", "parallel.offload.parameters=true")
RESUMED = {
    "ema": EMA,
    "mean": ("train.average=mean", "train.average.begin=3 steps"),
    "bf16-pure": (*EMA, "train.precision=bf16-pure", "optim.lr=3e-3"),
    "offload": (*EMA, *OFFLOAD),
}


@pytest.mark.parametrize("swap", [(), ("optim.kind=lion", "optim.lr=1e-3")], ids=["", "swap"])
@pytest.mark.parametrize("words", RESUMED.values(), ids=RESUMED)
def test_a_resumed_average_has_the_same_bits(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], swap: tuple[str, ...]
) -> None:
    """With weights of 16 bit and weights on disk too, and across another optimizer from step 6 on."""
    monkeypatch.setattr(offload, "SMALLEST", 1)
    run, whole = RunDir(tmp_path / "parts").create(), RunDir(tmp_path / "whole").create()
    for each in (run, whole) if swap else ():
        write_request(each, Request(action="set", settings=[*swap], at_step=6))
    launch_run(whole.path, *words)
    for number, step in enumerate((2, 7)):
        write_request(run, Request(action="stop", at_step=step))
        assert launch_run(run.path, *(() if number else words), mode="resume" if number else "start") == Exit.RESUMABLE
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert same(average(run.path, 12), average(tmp_path / "whole", 12))


def test_weights_on_disk_have_the_same_average(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 1)
    for name, words in (("memory", EMA), ("disk", RESUMED["offload"])):
        assert launch_run(tmp_path / name, "eval.every=12", *words) == Exit.DONE
    assert same(average(tmp_path / "disk", 12), average(tmp_path / "memory", 12))
    assert same(weights(tmp_path / "disk", 12), weights(tmp_path / "memory", 12))
    records = [(RunDir(tmp_path / name).evals / "step-00000012.json").read_text() for name in ("disk", "memory")]
    assert json.loads(records[0])["all"] == json.loads(records[1])["all"]


def test_a_fork_goes_on_and_an_average_may_begin_on_the_way(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "whole", *EMA)
    write_request(RunDir(tmp_path / "late").create(), Request(action="stop", at_step=4))
    assert launch_run(tmp_path / "late") == Exit.RESUMABLE
    assert launch_run(tmp_path / "late", *EMA, "train.average.decay=0", mode="resume") == Exit.DONE
    assert same(average(tmp_path / "late", 12), weights(tmp_path / "late", 12))
    fork = ["fork", str(tmp_path / "whole"), "--at", "4", "--out", str(tmp_path / "fork")]
    assert main(fork) == Exit.DONE
    assert same(average(tmp_path / "fork", 12), average(tmp_path / "whole", 12))


def test_evaluation_takes_the_average_and_says_so(tmp_path: Path, launch_run: Launch) -> None:
    words = ("eval.every=12", *EMA)
    launch_run(tmp_path / "average", *words)
    launch_run(tmp_path / "trained", *words, "train.average.evaluate=false")
    assert same(weights(tmp_path / "average", 12), weights(tmp_path / "trained", 12))
    losses = {}
    for name in ("average", "trained"):
        record = json.loads((RunDir(tmp_path / name).evals / "step-00000012.json").read_text())
        assert record.get("weights") == ("average" if name == "average" else None)
        losses[name] = record["all"]["loss"]
    assert losses["average"] != losses["trained"]


def test_the_average_is_scored_and_exported(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    launch_run(run, "eval.every=12", *EMA)
    ended = json.loads((RunDir(run).evals / "step-00000012.json").read_text())
    capsys.readouterr()
    assert main(["eval", str(run), "--average", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(
        ended.get("whole", ended)["all"]["loss"], rel=1e-6
    )
    assert main(["export", str(run), "--average", "--out", str(tmp_path / "model")]) == Exit.DONE
    exported, kept = dict(read_merged(tmp_path / "model")[2]), average(run, 12)
    assert all(torch.equal(each, kept[name][: len(each)]) for name, each in exported.items())


def test_what_has_no_average_is_refused(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run")
    with pytest.raises(UsageError, match=r"has no average of the weights: train with --train\.average ema"):
        read_merged(checkpoint(tmp_path / "run", 12), average=True)
    with pytest.raises(UsageError, match=r"train\.average\.begin: is after 2,000 tokens"):
        launch_run(tmp_path / "late", *EMA, "train.average.begin=2000 tokens")


def test_an_average_of_another_model_is_refused(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", *EMA)
    with pytest.raises(IntegrityError, match="w is missing"):
        _read_shards(
            checkpoint(tmp_path / "run", 12) / AVERAGE,
            {"w": Shard(torch.zeros(2), (2,), (0,))},
            World(torch.device("cpu")),
        )


def test_an_adapter_is_averaged_alone(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", *EMA, 'surgery=[{kind="lora", rank=2}]')
    names = average(tmp_path / "run", 12)
    assert sum(each.numel() for each in names.values()) == 736  # of 10,000 parameters
    found = load_model(checkpoint(tmp_path / "run", 12), average=True).model.state_dict()
    assert all(torch.equal(found[name], each) for name, each in names.items())


@pytest.mark.parametrize("shard", ["none", "everything"])
def test_an_average_moves_to_other_ranks(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], shard: str
) -> None:
    """With exact sums weights have the same bits on 1, 2 and 4 ranks, and so has what is made of them."""
    words = [*tiny_settings, *EMA, "model.width=64", "eval.every=6", "train.micro_batch=1", "parallel.exact=true"]

    def go(folder: str, ranks: int, stop: int | None) -> None:
        path = tmp_path / folder
        if stop is not None:
            write_request(RunDir(path).create(), Request(action="stop", at_step=stop))
        begun = (path / "recipe.toml").exists()
        verb = ["resume", str(path)] if begun else ["train", "--out", str(path), *words]
        started = launcher.start(
            [*verb, f"parallel.data={ranks}", f"parallel.shard={shard if ranks > 1 else 'none'}"], tmp_path / "log"
        )
        assert started.wait() == (Exit.DONE if stop is None else Exit.RESUMABLE), started.text

    go("alone", 1, None)
    for ranks, stop in ((4, 4), (2, 8), (1, None)):
        go("run", ranks, stop)
    assert same(weights(tmp_path / "run", 12), weights(tmp_path / "alone", 12))
    assert same(average(tmp_path / "run", 12), average(tmp_path / "alone", 12))
    mine, theirs = (
        json.loads((tmp_path / name / "evals" / "step-00000006.json").read_text()) for name in ("run", "alone")
    )
    assert mine["weights"] == theirs["weights"] == "average"
    assert mine["all"]["loss"] == pytest.approx(theirs["all"]["loss"], rel=1e-6)
