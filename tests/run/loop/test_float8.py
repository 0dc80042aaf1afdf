"""`train.precision = "float8"`, emulated: a run learns as in bfloat16, and goes on bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from tests.run.loop.test_outside_optimizer import last_bytes, stop_at

Branch = Callable[[Path], list[dict[str, Any]]]
Launch = Callable[..., Exit]
WORDS = ("optim.lr=3e-3", "model.width=64", "checkpoint.every=4")


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_a_run_learns_and_goes_on_bit_for_bit(scaling: str, tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    words = (*WORDS, "train.precision=float8", "train.float8.emulate=true", f"train.float8.scales={scaling}")
    assert launch_run(tmp_path / "whole", *words) == Exit.DONE
    assert launch_run(tmp_path / "bf16", *WORDS, "train.precision=bf16") == Exit.DONE
    losses, others = ([step["loss"] for step in branch(tmp_path / name)] for name in ("whole", "bf16"))
    assert losses != others
    assert losses[-1] == pytest.approx(others[-1], rel=0.03)

    stop_at(tmp_path / "run", 5)
    assert launch_run(tmp_path / "run", *words) == Exit.RESUMABLE
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE
    assert branch(tmp_path / "run") == branch(tmp_path / "whole")
    assert last_bytes(tmp_path / "run") == last_bytes(tmp_path / "whole")
