"""Pipelines equal one process: losses, norms, every gradient, final weights; the passes are those of the schedule."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from hornbook.parallel.pipeline.schedules import Schedule, chunks_of, plan
from tests.parallel.pipeline.staged import step_of
from tests.parallel.trajectory import CLIP, Result, Run, compare, perform
from tests.ranks import RankServer

Performer = Callable[[Run], Result]
Stepper = Callable[[Run], Any]
SCHEDULES: list[Schedule] = ["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev"]
SMALL: dict[str, Any] = {"precision": "fp64", "microbatches": 5, "width": 32}


def staged(stages: int, schedule: Schedule = "1f1b", **more: Any) -> dict[str, Any]:
    return {"pipeline": {"stages": stages, "schedule": schedule, **more}}


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""
    known: dict[str, Result] = {}

    def result(run: Run) -> Result:
        if repr(run) not in known:
            known[repr(run)] = perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")
        return known[repr(run)]

    return result


@pytest.fixture(scope="module")
def stepped(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Stepper:
    """The first step of a run; the same one is not done twice."""
    known: dict[str, Any] = {}

    def result(run: Run) -> Any:
        if repr(run) not in known:
            known[repr(run)] = step_of(run_ranks, run, tmp_path_factory.mktemp("step") / "gradients")
        return known[repr(run)]

    return result


def check_step(stepped: Stepper, run: Run, within: float = 1e-9) -> None:
    """One step of a pipeline is that of one process, every parameter's gradient included."""
    said, passes, gradients = stepped(run)
    expected, _, others = stepped(run.alone)
    for name, loss in expected["losses"].items():
        assert said["losses"][name] == pytest.approx(loss, rel=within), name
    assert said["norm"] == pytest.approx(expected["norm"], rel=within)
    assert said["evaluated"] == pytest.approx(expected["evaluated"], rel=within)
    assert said["evaluated"][0] == said["evaluated"][1], "an evaluation changed something"
    assert gradients.keys() == others.keys()
    for name, gradient in others.items():
        difference = float((gradients[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-6))
        assert difference < within, (name, difference)
    settings = run.pipeline
    chunks = chunks_of(settings["schedule"], settings.get("chunks", 2))
    rounds = -(-run.microbatches // run.world)
    orders = plan(settings["schedule"], settings["stages"], chunks, rounds)
    expected_passes = [[str(action) for action in order] for order in orders for _ in range(run.world)]
    assert passes == expected_passes, "the passes are not those of the schedule"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_ranks_of_each_schedule(stepped: Stepper, schedule: Schedule) -> None:
    """Five layers, five microbatches of unequal weight, a tied embedding on both ends."""
    check_step(stepped, Run(layers=5, **SMALL, **staged(2, schedule)))
