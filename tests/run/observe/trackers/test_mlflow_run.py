"""MLflow, by a stand-in for its client: a run's steps are there once, whatever the run went through."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir

Launch = Callable[..., Exit]
ON = 'log.trackers=[{kind = "mlflow", project = "p"}]'


class Client:
    """One experiment, as `mlflow.MlflowClient` keeps it."""

    def __init__(self) -> None:
        self.experiments: list[str] = []
        self.runs: list[Any] = []
        self.metrics: list[Any] = []
        self.files: dict[str, Any] = {}
        self.status: list[str] = []

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return "7"

    def search_runs(self, experiments: list[str], text: str) -> list[Any]:
        assert experiments == ["7"]
        return [run for run in self.runs if text == f"tags.`hornbook.run` = '{run.tags['hornbook.run']}'"]

    def create_run(self, experiment: str, tags: dict[str, str], run_name: str) -> Any:
        assert experiment == "7"
        self.runs.append(SimpleNamespace(tags=tags, info=SimpleNamespace(run_id=run_name)))
        return self.runs[-1]

    def get_metric_history(self, run: str, key: str) -> list[Any]:
        return [metric for metric in self.metrics if (metric.run, metric.key) == (run, key)]

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        self.metrics += [SimpleNamespace(run=run, **vars(metric)) for metric in metrics]

    def log_dict(self, _: str, value: Any, name: str) -> None:
        self.files[name] = value

    def log_text(self, _: str, text: str, name: str) -> None:
        self.files[name] = text

    def update_run(self, _: str, status: str) -> None:
        self.status.append(status)

    def set_terminated(self, _: str) -> None:
        self.status.append("FINISHED")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    found, package, entities = Client(), ModuleType("mlflow"), ModuleType("mlflow.entities")

    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        return SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)

    vars(package).update(MlflowClient=lambda: found, __spec__=SimpleNamespace(name="mlflow"))
    vars(entities).update(Metric=metric)
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return found


def test_mlflow_gets_steps_evaluations_samples_and_the_recipe(
    tmp_path: Path, launch_run: Launch, client: Client, branch: Any
) -> None:
    run, words = RunDir(tmp_path / "run"), ("eval.every=6", "eval.prompt=the model", "eval.sample_tokens=3")
    assert launch_run(run.path, ON, *words, "train.tokens=1280") == Exit.DONE
    path = max(run.checkpoints.glob("step-*"))
    path.rename(run.checkpoints / f"damaged-{path.name}")
    assert launch_run(run.path, "train.tokens=1450", mode="resume") == Exit.DONE
    assert (client.experiments, len(client.runs)) == (["p"], 1)
    assert client.status == ["RUNNING", "FINISHED"] * 2
    losses = {metric.step: metric.value for metric in client.metrics if metric.key == "train/loss"}
    assert list(losses) == list(range(1, 13))
    assert [losses[step["step"]] for step in branch(run.path)][:8] == list(losses.values())[:8]
    assert len(losses) == sum(metric.key == "train/loss" for metric in client.metrics)
    assert {metric.step for metric in client.metrics if metric.key == "validation/loss"} >= {6, 12}
    assert "validation/loss.notes" in {metric.key for metric in client.metrics}
    assert client.files["recipe.json"]["train"]["tokens"] == 1450
    assert client.files["samples/step-00000006.txt"].startswith("the model")


def test_without_the_package_the_remedy_is_named(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match=r"log\.trackers needs mlflow, which is not installed: .*\[mlflow\]"):
        launch_run(tmp_path / "run", ON)
