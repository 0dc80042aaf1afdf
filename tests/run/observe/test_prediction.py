"""plan.json in a run, and predicted against measured at its end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.plan.devices.hardware import Cluster, parse_cluster, this_cluster
from hornbook.plan.planner import plan_own
from hornbook.plan.search import anchored_plan as anchor
from hornbook.plan.search.anchored_plan import anchored, measured_runs
from hornbook.run.observe import prediction
from hornbook.run.observe.prediction import Outcome, compared
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]


@pytest.fixture(autouse=True)
def _own_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))


def plan_records(run: RunDir) -> list[dict[str, Any]]:
    return [each for each in read_records(run.events) if each["kind"] == "plan"]


def test_a_run_says_how_far_its_plan_was_from_it_and_later_plans_follow(
    launch_run: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((anchor, "LEAST_STEPS"), (anchor, "LEAST_SECONDS"), (prediction, "LEAST_STEPS")):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(anchor, "LEAST_SECONDS", 0.0)
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, "train.threads=1") == Exit.DONE
    plan = json.loads(run.plan.read_text())
    layout = plan["layouts"][0]
    (record,) = plan_records(run)
    assert record["predicted_bytes"] == layout["peak_bytes"]
    assert record["predicted_seconds"] == pytest.approx(layout["step_seconds"])
    whole = [each for each in read_records(run.metrics) if each["step_tokens"] == 128]  # the last one has fewer
    steps = sorted(each["seconds"] for each in whole)
    assert steps[0] <= record["measured_seconds"] <= steps[-1]
    assert record["steps"] == len(steps) - prediction.WARM_UP
    assert record["measured_bytes"] > 2**26
    assert record["text"] in run.log.read_text()

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe, cluster = recipe_of(run), this_cluster()
    (kept,) = measured_runs(cluster)
    assert kept.seconds == record["measured_seconds"]
    own = anchored(plan_own(recipe, plan["vocab"], cluster), recipe, cluster)
    assert own.best.step.total == pytest.approx(record["measured_seconds"])
    assert own.best.tokens_per_second == pytest.approx(recipe.train.batch_tokens / record["measured_seconds"])
    assert "the last run of this recipe" in own.anchor
    wider = recipe.model_copy(update={"model": recipe.model.model_copy(update={"width": 64})})
    other, bare = plan_own(wider, plan["vocab"], cluster), own.time_factor
    assert anchored(other, wider, cluster).best.step.total == pytest.approx(bare * other.best.step.total)
    assert anchored(other, wider, cluster).anchor.startswith(f"times are {bare:.2f} x")
    cold = other.model_copy(update={"missed": other.best})
    slow = anchored(cold, wider, cluster)
    assert slow.missed == slow.best
    assert cold.upkeep is not None
    assert slow.upkeep is not None
    assert slow.upkeep.loader_rate == pytest.approx(cold.upkeep.loader_rate / bare)
    assert slow.reasons != cold.reasons
    gpu = parse_cluster("H100")
    assert anchored(plan_own(recipe, plan["vocab"], gpu), recipe, gpu).anchor == ""


def recipe_of(run: RunDir) -> Recipe:
    return resolve(str(run.recipe), (), environ={}).recipe


def test_a_plan_that_cannot_be_made_or_written_stops_no_run(
    launch_run: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(prediction, "plan_own", broken)
    assert launch_run(tmp_path / "run", "train.tokens=512") == Exit.DONE
    assert not RunDir(tmp_path / "run").plan.exists()
    assert plan_records(RunDir(tmp_path / "run")) == []


def test_a_few_steps_are_no_measurement(launch_run: Launch, tmp_path: Path) -> None:
    assert launch_run(tmp_path / "run", "train.tokens=512") == Exit.DONE
    assert RunDir(tmp_path / "run").plan.exists()
    assert plan_records(RunDir(tmp_path / "run")) == []
    assert not (tmp_path / "home" / "bench").exists()  # compiled kernels may be there


def test_the_line_has_the_unit_of_the_prediction() -> None:
    measured = Outcome(1.22, 50, int(60.7 * 2**30))
    assert compared(int(61.2 * 2**30), 1.18, measured) == "plan said 61.2 GiB / 1.18 s, run measured 60.7 / 1.22"
    assert compared(2**29, 0.05, Outcome(0.06, 50, 2**29)) == "plan said 0.5 GiB / 50 ms, run measured 0.5 / 60"


def test_ranks_of_a_cpu_share_it() -> None:
    device = this_cluster().device.model_copy(update={"at_once": 2, "fp32": 1.0, "bf16": 1.0, "bandwidth": 8.0})
    cluster = Cluster(device=device)
    assert cluster.shared(1) == cluster
    assert [cluster.shared(ranks).device.fp32 for ranks in (2, 4)] == [1.0, 0.5]
    assert cluster.shared(4).device.bandwidth == 2.0
    gpus = parse_cluster("8xH100")
    assert gpus.shared(8) is gpus
