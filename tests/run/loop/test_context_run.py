"""`hornbook train` with rows divided over ranks: evaluated, saved, resumed in one process and divided again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from tests.run.launcher import Launcher
from tests.run.loop.test_outside_optimizer import stop_at

Launch = Callable[..., Any]
Branch = Callable[[Path], list[dict[str, Any]]]
WORDS = ("eval.every=4",)


@pytest.mark.parametrize("kind", ["ring", pytest.param("all-to-all", marks=pytest.mark.slow)])
def test_a_run_goes_on_with_and_without_the_axis(
    kind: str, tmp_path: Path, launch_run: Launch, launcher: Launcher, branch: Branch
) -> None:
    assert launch_run(tmp_path / "whole", *WORDS) == Exit.DONE
    run = tmp_path / "run"
    stop_at(run, 2)
    assert launch_run(run, *WORDS) == Exit.RESUMABLE
    stop_at(run, 7)
    divided = ["resume", str(run), "parallel.context.ranks=2", f"parallel.context.kind={kind}"]
    started = launcher.start(divided, tmp_path / "log")
    assert started.wait() == Exit.RESUMABLE, started.text
    assert launch_run(run, "parallel.context=1", mode="resume") == Exit.DONE
    pairs = list(zip(branch(run), branch(tmp_path / "whole"), strict=True))
    assert len(pairs) == 12
    for found, expected in pairs:
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
