"""Runs that diverge and do not come back: a real loop finds it, goes back, and is well again."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.data.batch import Batch
from hornbook.data.loader.loader import Loader
from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.state import State
from hornbook.run.guard import detectors, guard
from tests.run.guard.poison import poison

Launch = Callable[..., Exit]
Events = Callable[..., list[dict[str, Any]]]
LONG = (
    "train.tokens=17920",
    "checkpoint.every=20",
    "optim.schedule.kind=constant",
    "optim.lr=0.003",
    "guard.mode=auto",
)
"""140 steps of 4 samples."""
NO_SKIP = ("guard.skip_norm_z=1e6", "guard.skip_loss_z=1e6")
"""No step is refused but one that spikes."""


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    original = State.forward_backward
    yield
    State.forward_backward = original


def losses(run: Path, attempt: int) -> dict[int, float]:
    records = read_records(RunDir(run).metrics)
    return {each["step"]: each["loss"] for each in records if each["attempt"] == attempt}


@pytest.mark.parametrize("asked", [False, True])
def test_a_slow_divergence_is_confirmed_by_held_out_text_and_left_out(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """From step 101 to 130 it learns the opposite in three steps of five: norms are usual ones, the loss creeps up.

    asked: the rise of the loss asks for the held-out text, over spans that fit the run; else its turn comes.
    """
    if asked:
        monkeypatch.setattr(detectors, "DRIFT_NEAR", 4)
        monkeypatch.setattr(detectors, "DRIFT_LIMIT", 10.0)
        monkeypatch.setattr(guard, "DRIFT_FROM", 32)
    poison(({sample for sample in range(400, 520) if sample % 20 < 12}, -1.0))
    words = (*LONG, *NO_SKIP, "guard.clip_z=1e6", "guard.probe_every=10")
    assert launch_run(tmp_path / "run", *words) == Exit.DONE
    (back,) = events(tmp_path / "run", "rollback")
    assert back["rule"] == "D3"
    assert back["inputs"]["z_probe"] > 6
    rises = [each["step"] for each in events(tmp_path / "run", "probe") if each["asked"]]
    assert bool(rises) == asked
    assert min(rises, default=101) > 100
    ((first, end),) = back["windows"]
    assert first < 4 * back["onset"] <= 4 * back["step"] < end
    assert back["intervention"]["overlay"][0] == 0.7
    before, after = losses(tmp_path / "run", 1), losses(tmp_path / "run", 2)
    assert max(after.values()) < max(before[step] for step in after if step in before) - 0.5


def test_a_spike_that_lasts_is_left_out(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 91 spikes; half of each batch is noise, from step 118 to 130 all of it: the loss is up, norms are usual."""
    take = Loader.take

    def taking(self: Loader, *arguments: Any, **more: Any) -> Any:
        batch = take(self, *arguments, **more)
        if not 360 <= batch.first_sample < 520:
            return batch
        half = 364 <= batch.first_sample < 468
        spoilt = batch.batches[:1] if half else batch.batches
        return replace(batch, batches=[*map(_noise, spoilt), *batch.batches[len(spoilt) :]])

    monkeypatch.setattr(Loader, "take", taking)
    poison((range(360, 364), 1e3))
    assert launch_run(tmp_path / "run", *LONG, *NO_SKIP, "guard.window=32", "optim.clip=0") == Exit.DONE
    (spike,) = events(tmp_path / "run", "spike")
    (back,) = events(tmp_path / "run", "rollback")
    assert (spike["step"], spike["onset"]) == (91, 91)
    assert (back["rule"], back["onset"], back["inputs"]) == ("D2", 91, {"spike": 91})
    assert back["step"] > 91 + 16


def _noise(batch: Batch) -> Batch:
    drawn = torch.Generator().manual_seed(int(batch.samples[0]))
    few = torch.randint(0, 256, (2, *batch.tokens.shape), generator=drawn)
    return replace(batch, tokens=few[0], targets=few[1])
