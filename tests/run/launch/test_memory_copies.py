"""Ranks that die go on from copies of the state in memory, and from the checkpoint where those are not sound."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from tests.run.launcher import Launcher, Started

Events = Callable[..., list[dict[str, Any]]]
Train = Callable[..., Started]
TWO = ("parallel.data=2", "model.dropout=0.1", "checkpoint.background=false", "checkpoint.memory_every=1")


@pytest.fixture
def train(launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path) -> Train:
    """train(folder, "key=value", ..., faults=[...]) starts a run of two ranks with copies in memory."""

    def start(folder: Path, *words: str, **how: Any) -> Started:
        words = ("train", "--out", str(folder), *tiny_settings, *TWO, *words)
        return launcher.start(words, tmp_path / "output.txt", supervisor__BACKOFF=[0.0], **how)

    return start


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The same run without any interruption."""
    return train_whole(*TWO)


def kill(step: int, generation: int = 0, **where: Any) -> dict[str, Any]:
    return {"do": "SIGKILL", "generation": generation, "rank": 1, "phase": "clip", "step": step, **where}


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "everything"])
def test_killed_ranks_go_on_from_the_step_before(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, shard: str
) -> None:
    run = tmp_path / "run"
    kills = [kill(3), kill(7, 1, rank=0), kill(11, 2)]
    started = train(run, f"parallel.shard={shard}", faults=kills)
    assert started.wait() == 0, started.text
    if shard == "none":
        same(run)
    assert [(each["step"], each["checkpoint"]) for each in events(run, "resume")] == [
        (3, "memory"),
        (7, "memory"),
        (11, "memory"),
    ]
    assert [each["restarts"] for each in events(run, "restart")] == [1, 1, 1]  # each restart made progress
    assert "step 7 restored from the copy in memory" in RunDir(run).log.read_text()


@pytest.mark.parametrize(
    "memory", ["checkpoint.memory_every=1", pytest.param("checkpoint.memory_every=0", marks=pytest.mark.slow)]
)
def test_ranks_that_waited_take_over(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, memory: str
) -> None:
    run = tmp_path / "run"
    kills = [kill(3), kill(7, 1, rank=0), kill(11, 2)]
    started = train(run, "guard.standby=true", memory, "guard.max_restarts=9", faults=kills)
    assert started.wait() == 0, started.text
    same(run)
    assert [each["attempt"] for each in events(run, "restart")] == [2, 3, 4]
    assert [each["restarts"] for each in events(run, "restart")] == [1, 1, 1]  # each restart made progress
    states = [(3, 7, 11), (0, 4, 8)][memory.endswith("=0")]
    assert tuple(each["step"] for each in events(run, "resume")) == states


@pytest.mark.slow
def test_ranks_that_were_killed_while_they_waited_are_made_anew(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    idle = {"do": "kill youngest", "generation": 0, "rank": 0, "phase": "data", "step": 8}
    started = train(run, "guard.standby=true", faults=[idle, kill(9)])
    assert started.wait() == 0, started.text
    same(run)
    assert [each["step"] for each in events(run, "resume")] == [9]


def test_a_save_that_a_death_cut_off_is_made_again(tmp_path: Path, train: Train, events: Events) -> None:
    """It was under way in the background when the ranks died, and the copy in memory is of the same step."""
    run = tmp_path / "run"
    killed = kill(4, phase="data")
    started = train(run, "checkpoint.background=true", "checkpoint.keep=9", faults=[killed])
    assert started.wait() == 0, started.text
    assert [(each["step"], each["checkpoint"]) for each in events(run, "resume")] == [(4, "memory")]
    assert [each["step"] for each in events(run, "save")] == [4, 8, 12]


@pytest.mark.slow
def test_a_death_within_a_copy_leaves_the_one_before(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    torn = kill(7, phase="observe") | {"do": "tear copy"}
    started = train(run, faults=[torn])
    assert started.wait() == 0, started.text
    same(run)
    assert [each["step"] for each in events(run, "resume")] == [6]


def test_damaged_copies_are_found_and_never_used_again(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[{**kill(7), "do": "flip copies"}, kill(7), kill(10, 1)])
    assert started.wait() == 0, started.text
    same(run)
    (distrust,) = events(run, "tier_distrusted")
    assert distrust["text"].startswith("rank ")
    assert "the copy of step 7 in memory is damaged: " in distrust["text"]
    assert [(each["step"], each["checkpoint"]) for each in events(run, "resume")] == [
        (4, "step-00000004"),
        (8, "step-00000008"),
    ]


def test_a_step_that_is_not_finite_after_a_copy_is_blamed_on_it(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[kill(6), {"do": "not finite", "generation": 1, "phase": "data", "step": 7}])
    assert started.wait() == Exit.DONE, started.text
    same(run)
    assert [(each["step"], each["checkpoint"]) for each in events(run, "resume")] == [
        (6, "memory"),
        (4, "step-00000004"),
    ]
    (distrust,) = events(run, "tier_distrusted")
    assert distrust["text"] == "step 8 is not finite, 2 after a start from the copy in memory"
