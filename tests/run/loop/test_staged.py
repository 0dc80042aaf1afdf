"""Runs in stages: trained, evaluated, saved, stopped, and resumed in other layouts; described before they start."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.cli.train.dry_run import describe_job, summary_text
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.job import Start
from hornbook.settings.resolve import ConfigError, resolve
from tests.run.launcher import Launcher
from tests.run.loop.test_outside_optimizer import stop_at

Branch = Callable[[Path], list[dict[str, Any]]]
Launch = Callable[..., Exit]
WORDS = ("model.layers=5", "eval.every=4", "eval.tokens=100", "eval.prompt=The", "eval.sample_tokens=3")
MORE = ("train.average=ema", "optim.clip=0.5")


def test_from_one_process_to_stages_and_back(
    tmp_path: Path, launch_run: Launch, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch
) -> None:
    """Losses and gradient norms of each step, validation, weights, moments and average are those of one process."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert launch_run(whole, *WORDS, *MORE) == Exit.DONE
    stop_at(run, 3)
    begun = ["train", "--out", str(run), *tiny_settings, *WORDS, *MORE, "parallel.pipeline=2"]
    started = launcher.start(begun, tmp_path / "log")
    assert started.wait() == Exit.RESUMABLE, started.text
    stop_at(run, 6)
    assert launch_run(run, "parallel.pipeline=1", mode="resume") == Exit.RESUMABLE
    layout = ("parallel.data=2", "parallel.pipeline.stages=2", "parallel.pipeline.schedule=zbv", "train.micro_batch=1")
    started = launcher.start(["resume", str(run), *layout, "parallel.shard=optimizer"], tmp_path / "log2")
    assert started.wait() == Exit.DONE, started.text
    assert "blocks 0" in (run / "log.txt").read_text()
    for found, expected in zip(branch(run), branch(whole), strict=True):
        for name in ("loss", "gradient_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    for file in whole.glob("evals/*.json"):
        found, expected = (json.loads((folder / "evals" / file.name).read_text()) for folder in (run, whole))
        assert found["all"]["loss"] == pytest.approx(expected["all"]["loss"], rel=1e-4)
    for file in ("model.safetensors", "trainer/optimizer.safetensors", "trainer/average.safetensors"):
        found, expected = (load_file(RunDir(folder).checkpoints / "step-00000012" / file) for folder in (run, whole))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert float((found[name] - tensor).abs().max()) < 1e-3 * max(float(tensor.abs().max()), 1e-2), name


@pytest.mark.parametrize(
    ("words", "key", "remedy"),
    [
        (["parallel.pipeline=4"], "parallel.pipeline.stages", "at most 3"),
        (["parallel.pipeline.stages=2", "parallel.pipeline.schedule=zbv"], "parallel.pipeline.stages", "at most 1"),
        (["parallel.pipeline={stages=3,cuts=[2,1]}"], "parallel.pipeline.cuts", "give 2 rising numbers below 3"),
        (["parallel.pipeline={stages=2,chunks=3}"], "parallel.pipeline.chunks", "leave it out"),
        (["parallel.pipeline=2", "parallel.exact=true"], "parallel.exact", "leave"),
        (["parallel.pipeline=2", "surgery=prompt"], "surgery", "take lora, or leave parallel.pipeline.stages 1"),
        (["parallel.pipeline={stages=2,schedule='zb-h1'}", "parallel.recompute=block"], "parallel.recompute", "1f1b"),
        (["parallel.pipeline={stages=2,schedule='zb-h1'}", "train.compile=true"], "train.compile", "set it to false"),
        (
            ["parallel.pipeline=2", "train.compile=true", "train.compile_scope=stack"],
            "train.compile_scope",
            'take "blocks"',
        ),
    ],
)
def test_what_cannot_be_staged_is_refused(words: list[str], key: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(None, ["model.layers=3", "train.batch_tokens=2048", "train.micro_batch=1", *words], environ={})
    assert key in str(refused.value)
    assert remedy in str(refused.value)


def test_a_dry_run_shows_the_plan(tmp_path: Path, tiny_settings: tuple[str, ...]) -> None:
    """Blocks of each rank, idle time, chart, and a warning where there are fewer microbatches than ranks."""
    words = [*tiny_settings, *WORDS, "parallel.pipeline=3"]
    summary = describe_job(resolve(None, words, environ={}), RunDir(tmp_path / "run"), Start())
    text = summary_text(summary)
    assert "pipeline     3 ranks, blocks 0-1 | 2-3 | 4; 1f1b, 2 microbatches: ranks wait" in text
    assert "2 microbatches do not fill a pipeline of 3 ranks" in text
    assert summary["pipeline"]["chart"].startswith("rank 0  F0 ")
