"""Adapters trained on ranks that divide the model: stopped, resumed in other layouts, the same as on one process."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.job import Start
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve
from tests.run.launcher import Launcher
from tests.run.loop.test_outside_optimizer import stop_at

Branch = Callable[[Path], list[dict[str, Any]]]
Launch = Callable[..., Exit]
SHAPE = ("model.layers=2", "optim.eps=0.001")
"""With a smaller eps, AdamW makes steps of rounding where gradients are close to 0."""
PIPELINE = ("parallel.pipeline.stages=2",)
ONE = ("parallel.pipeline.stages=1", "parallel.tensor=1", "parallel.sequence=false")
ADAPTER = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """The last checkpoint of a trained run. Read only."""
    folder = tmp_path_factory.mktemp("base") / "run"
    assert launch(resolve(None, (*tiny_settings, *SHAPE), environ={}), RunDir(folder), Start()) == Exit.DONE
    return checkpoint_path(folder)


@pytest.mark.parametrize(
    ("surgery", "layout"),
    [
        ('surgery=[{kind="nf4", block=16}, {kind="dora", rank=2}]', PIPELINE),
        ('surgery=[{kind="dora", rank=2}]', ("parallel.tensor=2", "parallel.sequence=true")),
    ],
)
def test_from_ranks_to_one_process_and_back(
    tmp_path: Path,
    launch_run: Launch,
    launcher: Launcher,
    tiny_settings: tuple[str, ...],
    branch: Branch,
    base: Path,
    surgery: str,
    layout: tuple[str, ...],
) -> None:
    """Losses, norms and adapters are those of one process; a stop and a resume on the ranks change no bit."""
    whole, run, again, alone, back = (tmp_path / name for name in ("whole", "run", "again", "alone", "back"))
    assert launch_run(whole, *SHAPE, surgery, init_from=InitFrom("import", base)) == Exit.DONE
    words = ["train", "--from", str(base), *tiny_settings, *SHAPE, surgery, *layout]
    started = launcher.start([*words, "--out", str(again)], tmp_path / "log")
    assert started.wait() == Exit.DONE, started.text
    stop_at(run, 5)
    started = launcher.start([*words, "--out", str(run)], tmp_path / "log1")
    assert started.wait() == Exit.RESUMABLE, started.text
    trained = next(line for line in started.text.splitlines() if "parameters are trained" in line)
    assert trained.partition(" ")[2] in (whole / "log.txt").read_text()
    shutil.copytree(run, alone)
    started = launcher.start(["resume", str(run)], tmp_path / "log2")
    assert started.wait() == Exit.DONE, started.text
    assert launch_run(alone, *ONE, mode="resume") == Exit.DONE
    stop_at(back, 5)
    assert launch_run(back, *SHAPE, surgery, init_from=InitFrom("import", base)) == Exit.RESUMABLE
    started = launcher.start(["resume", str(back), *layout], tmp_path / "log3")
    assert started.wait() == Exit.DONE, started.text
    saved = {each: RunDir(each).checkpoints / "step-00000012" for each in (whole, run, again, alone, back)}
    assert branch(run) == branch(again)
    assert (saved[run] / ADAPTER).read_bytes() == (saved[again] / ADAPTER).read_bytes()
    for folder in (run, alone, back):
        check_like(branch(folder), branch(whole))
        found, expected = (load_file(saved[each] / ADAPTER) for each in (folder, whole))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert float((found[name] - tensor).abs().max()) < 1e-4 * max(float(tensor.abs().max()), 1e-2), name


def check_like(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Steps of two runs whose sums are in other orders."""
    for mine, other in zip(found, expected, strict=True):
        for name in ("loss", "gradient_norm"):
            assert mine[name] == pytest.approx(other[name], rel=1e-4), name
