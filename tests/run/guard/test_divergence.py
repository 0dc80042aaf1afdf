"""Runs that diverge without a step that stands out: a real loop finds it, goes back, and is well again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from tests.run.guard.poison import poison

Launch = Callable[..., Exit]
Events = Callable[..., list[dict[str, Any]]]
LONG = ("train.tokens=25600", "checkpoint.every=10", "log.statistics_every=0", "optim.schedule.kind=constant")
"""200 steps of 4 samples."""
NO_STEP = ("guard.skip_norm_z=1e6", "guard.skip_loss_z=1e6", "guard.clip_z=1e6")
"""No step stands out by itself."""


def losses(run: Path) -> list[float]:
    return [each["loss"] for each in read_records(RunDir(run).metrics)]


def test_a_slow_divergence_is_confirmed_by_held_out_text_and_left_out(
    tmp_path: Path, launch_run: Launch, events: Events
) -> None:
    """From step 141 to 160 the run learns the opposite: gradients have their usual size, and the loss creeps up."""
    undo = poison((range(560, 640), -1.0))
    try:
        words = (*LONG, *NO_STEP, "optim.lr=0.003", "guard.mode=auto", "guard.probe_every=10")
        assert launch_run(tmp_path / "run", *words) == Exit.DONE
    finally:
        undo()
    (back,) = events(tmp_path / "run", "rollback")
    assert back["rule"] == "D3"
    assert back["inputs"]["z_probe"] > 6
    ((first, end),) = back["windows"]
    assert first <= 560
    assert end >= 640
    assert back["intervention"]["overlay"][0] == 0.7
    steps = list(read_records(RunDir(tmp_path / "run").metrics))
    worst = max(each["loss"] for each in steps if each["attempt"] == 1)
    assert max(each["loss"] for each in steps if each["attempt"] == 2) < worst
