"""A run with `train.seconds` that becomes shorter: an entry of the ledger, and after any stop the same bits."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hornbook.cli.train.dry_run import describe_job
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.optim.config.batch_schedule import NoRamp
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.job.timekeeper import Timekeeper
from hornbook.run.ledger.step_report import Step
from hornbook.run.ledger.training_length import Cut, TrainingLength
from hornbook.run.loop.training_loop import _keep_length
from hornbook.settings.resolve import resolve
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]
Decide = Callable[..., None]

TIMED = ("train.seconds=1e6", "checkpoint.background=false", "model.dropout=0.1")
LENGTH = 9 * 128


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Decide:
    """decide({step: length}, die=step): what the clock says after a step; and after which one the run is killed."""

    def patch(lengths: dict[int, int], die: int | None = None) -> None:
        def tokens_in_time(_: Timekeeper, step: Step, length: TrainingLength) -> int:
            if step.step == die:
                raise KeyboardInterrupt
            return min(lengths.get(step.step, length.tokens), length.tokens)

        monkeypatch.setattr(Timekeeper, "tokens_in_time", tokens_in_time)
        monkeypatch.setattr(Timekeeper, "expected", lambda *_: 0.0)

    return patch


def weights(folder: Path) -> dict[str, bytes]:
    """Weights and moments of the last checkpoint."""
    last = max(RunDir(folder).checkpoints.glob("step-*"))
    return {f"{last.name}/{path.name}": path.read_bytes() for path in sorted(last.rglob("*.safetensors"))}


def test_a_shortened_run_ends_with_its_schedule(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events, decide: Decide
) -> None:
    decide({})
    launch_run(tmp_path / "whole", *TIMED)
    decide({5: LENGTH})
    assert launch_run(tmp_path / "run", *TIMED) == Exit.DONE
    whole, steps = branch(tmp_path / "whole"), branch(tmp_path / "run")
    assert len(steps) == 9
    assert steps[:5] == whole[:5]
    assert steps[5] == whole[5]  # the entry changes no rate at its own step: no jump
    assert [step["lr"] for step in steps[6:]] < [step["lr"] for step in whole[6:9]]
    assert steps[-1]["lr"] < whole[9]["lr"]  # near its end, as the last of the long run
    (entry,) = events(tmp_path / "run", "shorten")
    assert (entry["step"], entry["tokens"], entry["length"]) == (5, 5 * 128, LENGTH)
    assert [record["step"] for record in events(tmp_path / "run", "evaluation", "save")][-2:] == [9, 9]
    state = RunDir(tmp_path / "run").read_state()
    assert state is not None
    assert (state["status"], state["tokens"], state.get("total_tokens")) == ("finished", LENGTH, LENGTH)
    log = RunDir(tmp_path / "run").log.read_text(encoding="utf-8")
    assert "shortened after step 5 from 12 to 9 steps (train.seconds)" in log


def test_a_time_that_suffices_changes_no_bit(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "free")
    launch_run(tmp_path / "timed", "train.seconds=1e6")
    assert branch(tmp_path / "timed") == branch(tmp_path / "free")
    assert weights(tmp_path / "timed") == weights(tmp_path / "free")


@pytest.mark.parametrize("die", [3, 4, 5, 6, 7, 8])
def test_kills_before_and_after_the_entry_make_no_difference(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events, decide: Decide, die: int
) -> None:
    """Saves are at 4 and 8, the entries at 5 and 7: a checkpoint from before an entry applies it at the same step."""
    cuts = {5: 10 * 128, 7: LENGTH}
    decide(cuts)
    launch_run(tmp_path / "whole", *TIMED)
    decide(cuts, die)
    assert launch_run(tmp_path / "parts", *TIMED) == Exit.INTERRUPTED
    decide({step: length for step, length in cuts.items() if step >= die})  # what was decided stands in the ledger
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    assert branch(tmp_path / "parts") == branch(tmp_path / "whole")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert [record["step"] for record in events(tmp_path / "parts", "shorten")] == [5, 7]


def test_an_earlier_entry_of_a_later_attempt_takes_the_place_of_the_older(
    tmp_path: Path, launch_run: Launch, branch: Branch, decide: Decide
) -> None:
    decide({6: 11 * 128}, die=7)
    launch_run(tmp_path / "parts", *TIMED)
    decide({5: LENGTH}, die=6)
    launch_run(tmp_path / "parts", mode="resume")
    decide({})
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    decide({5: LENGTH})
    launch_run(tmp_path / "whole", *TIMED)
    assert branch(tmp_path / "parts") == branch(tmp_path / "whole")


def test_a_length_that_someone_gives_takes_the_entry_back(
    tmp_path: Path, launch_run: Launch, branch: Branch, decide: Decide
) -> None:
    decide({5: LENGTH})
    assert launch_run(tmp_path / "run", *TIMED) == Exit.DONE
    decide({10: 11 * 128})
    for _ in range(2):  # the second time the ledger alone says so
        launch_run(tmp_path / "run", "train.tokens=1536", mode="resume")
    assert len(branch(tmp_path / "run")) == 11


def test_more_seconds_do_not_lengthen_it_again(
    tmp_path: Path, launch_run: Launch, branch: Branch, decide: Decide
) -> None:
    decide({5: LENGTH}, die=7)
    launch_run(tmp_path / "run", *TIMED)
    decide({})
    assert launch_run(tmp_path / "run", "train.seconds=2e6", mode="resume") == Exit.DONE
    assert len(branch(tmp_path / "run")) == 9


def test_ranks_shorten_at_the_same_step(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch, events: Events
) -> None:
    """No time is left when the run goes on: one step later it is told so. With exact sums all have the same bits."""
    exact = ("model.width=64", "parallel.exact=true", "checkpoint.every=2")
    for ranks in (1, 2):
        folder, output = tmp_path / f"{ranks}", tmp_path / f"{ranks}.log"
        write_request(RunDir(folder).create(), Request(action="stop", at_step=5))
        words = ["train", "--out", str(folder), *tiny_settings, *exact, f"parallel.data={ranks}"]
        stopped = launcher.start(words, output)
        assert stopped.wait() == Exit.RESUMABLE, stopped.text
        kill = {"rank": 1, "phase": "clip", "step": 6, "generation": 0, "do": "SIGKILL"}
        words = ["resume", str(folder), "train.seconds=0.001"]
        resumed = launcher.start(words, output, faults=[kill] if ranks > 1 else [])
        assert resumed.wait() == Exit.DONE, resumed.text
        assert [record["step"] for record in events(folder, "shorten")] == [6]
    assert len(branch(tmp_path / "1")) == 7
    assert branch(tmp_path / "2") == branch(tmp_path / "1")
    assert weights(tmp_path / "2") == weights(tmp_path / "1")
    assert events(tmp_path / "2", "restart")


@pytest.mark.parametrize("leader", [LENGTH, 12 * 128])
def test_what_rank_0_decides_goes_for_all(leader: int) -> None:
    """This rank's own clock says 7 steps."""
    length, noted, shown = TrainingLength(12 * 128, NoRamp().batches(128), 32), [], []
    ledger = SimpleNamespace(note=lambda kind, _, **fields: noted.append((kind, fields)))
    job: Any = SimpleNamespace(ledger=ledger)
    world: Any = SimpleNamespace(broadcast=lambda _: leader)
    evidence = {"elapsed": 1.0, "expected": 2.0, "reason": "train.seconds"}
    keeper: Any = SimpleNamespace(tokens_in_time=lambda *_: 7 * 128, evidence=lambda *_: evidence)
    observers: Any = SimpleNamespace(shorten=lambda *words: shown.append(words))
    step: Any = SimpleNamespace(step=5, tokens=5 * 128)
    shorter = _keep_length(job, world, keeper, observers, step, length)
    if leader == LENGTH:
        assert shorter == length.cut([Cut(5 * 128, LENGTH)])
        assert noted == [("shorten", {"length": LENGTH, "before": 12 * 128, **evidence})]
        assert shown == [(5, shorter, "train.seconds")]
    else:
        assert (shorter, noted, shown) == (length, [], [])


def test_a_dry_run_of_a_resume_says_the_length_in_force(tmp_path: Path, launch_run: Launch, decide: Decide) -> None:
    decide({5: LENGTH}, die=7)
    launch_run(tmp_path / "run", *TIMED)
    run = RunDir(tmp_path / "run")
    summary = describe_job(resolve(str(run.recipe), (), environ={}), run, Start("resume"))
    assert (summary["steps"], summary["tokens"]) == (9, LENGTH)
    longer = resolve(str(run.recipe), ("train.tokens=1536",), environ={})
    assert describe_job(longer, run, Start("resume"))["steps"] == 12
