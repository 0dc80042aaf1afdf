"""`log.noise_scale`: in the metrics, without a change to training, over a resume; refused where it cannot be had."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from hornbook.settings.resolve import ConfigError, resolve
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
ON = "log.noise_scale=5"
KEYS = ("noise_scale", "noise_trace", "noise_signal")


def without(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in step.items() if key not in KEYS} for step in steps]


def test_it_only_looks_and_costs_no_record_when_off(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "off")
    launch_run(tmp_path / "on", ON)
    off, on = branch(tmp_path / "off"), branch(tmp_path / "on")
    assert without(on) == off
    assert all(step["noise_trace"] is not None for step in on[:-1])
    assert on[-1]["noise_trace"] is None  # 64 tokens are one microbatch, of which there is no part
    assert on[-1]["noise_scale"] == on[-2]["noise_scale"] is not None


def test_averages_go_on_after_a_stop(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "whole", ON)
    run = RunDir(tmp_path / "parts").create()
    for number, step in enumerate((3, 7)):
        write_request(run, Request(action="stop", at_step=step))
        launch_run(run.path, *(() if number else (ON,)), mode="resume" if number else "start")
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tmp_path / "whole")


@pytest.mark.parametrize("shard", ["none", "everything"])
def test_ranks_measure_it_without_a_change_to_training(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch, shard: str
) -> None:
    words = [*tiny_settings, "train.micro_batch=1", "parallel.data=2", f"parallel.shard={shard}"]
    for name, more in (("off", ()), ("on", (ON,))):
        started = launcher.start(["train", "--out", str(tmp_path / name), *words, *more], tmp_path / f"{name}.log")
        assert started.wait() == Exit.DONE, started.text
    on = branch(tmp_path / "on")
    assert without(on) == branch(tmp_path / "off")
    assert all(step["noise_trace"] is not None for step in on[:-1])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train.micro_batch=4"], "there is one only: lower train.micro_batch"),
        (["parallel.data=2", "parallel.shard=optimizer"], 'take "none" or "gradients"'),
        (["parallel.data=2", "parallel.shard=everything"], "lower train.micro_batch"),
        (["parallel.data=2", "parallel.exact=true"], "lower train.micro_batch"),
        (["parallel.data=2"], ""),
        (["parallel.data=2", "parallel.shard=everything", "train.micro_batch=1"], ""),
    ],
)
def test_where_it_cannot_be_had_it_is_refused(tiny_settings: tuple[str, ...], words: list[str], text: str) -> None:
    if not text:
        resolve(None, [*tiny_settings, ON, *words], environ={})
        return
    with pytest.raises(ConfigError, match=rf"log\.noise_scale .*{text}"):
        resolve(None, [*tiny_settings, ON, *words], environ={})
