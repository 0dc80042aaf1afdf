"""MLflow (`log.trackers`), as a tracker."""

import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hornbook.files.run_directory import RunDir
from hornbook.run.observe.trackers.metrics import of_evaluation, of_step
from hornbook.settings.recipe import Recipe
from hornbook.settings.schema import plain
from hornbook.settings.training import MlflowConfig

_TAG = "hornbook.run"
"""Tag by which a later attempt knows the run."""


def _name(tag: str) -> str:
    """The name of a metric: MLflow allows few characters, and its file store no name that is the folder of another."""
    group, _, name = tag.partition("/")
    return re.sub(r"[^\w\-. /]", "_", f"{group}/{name.replace('/', '.')}", flags=re.ASCII)


class MlflowRun:
    """A run of an experiment. It uses MLflow's client, because the module's own functions belong to one thread."""

    name = "mlflow"

    def __init__(self, config: MlflowConfig, recipe: Recipe, run: RunDir, identity: Callable[[], str]) -> None:
        self._config, self._recipe, self._run, self._identity = config, recipe, run, identity
        self._client: Any = None
        self._id = ""
        self._first_step = 0
        """Earlier steps are in MLflow, which would show them twice."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Send the metrics of a step."""
        self._send(record, of_step(record))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Send the metrics of an evaluation."""
        self._send(record, of_evaluation(record))

    def sample(self, record: Mapping[str, Any]) -> None:
        """Send a sample of text, as an artifact."""
        self._open()
        self._client.log_text(self._id, f"{record['prompt']}{record['text']}", f"samples/step-{record['step']:08d}.txt")

    def close(self) -> None:
        """End the run in MLflow."""
        if self._id:
            self._client.set_terminated(self._id)

    def abandon(self) -> None:
        """Nothing: its thread is a daemon."""

    def _send(self, record: Mapping[str, Any], metrics: Iterator[tuple[str, float]]) -> None:
        self._open()
        if record["step"] < self._first_step:
            return
        metric, milliseconds = importlib.import_module("mlflow.entities").Metric, int(record["time"] * 1000)
        shown = {_name(tag): value for tag, value in metrics if math.isfinite(value)}
        self._client.log_batch(
            self._id, metrics=[metric(name, value, milliseconds, record["step"]) for name, value in shown.items()]
        )

    def _open(self) -> None:
        """Find or begin the run, and send the recipe."""
        if self._id:
            return
        self._client = importlib.import_module("mlflow").MlflowClient()
        found = self._client.get_experiment_by_name(self._config.project)
        experiment = found.experiment_id if found else self._client.create_experiment(self._config.project)
        tag = self._identity()  # the ledger, which it is made of, has begun by now
        runs = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{tag}'")
        run = runs[0] if runs else self._client.create_run(experiment, tags={_TAG: tag}, run_name=self._run.name)
        self._id = run.info.run_id
        history = self._client.get_metric_history(self._id, "train/loss") if runs else []
        self._first_step = max((metric.step for metric in history), default=-1) + 1
        self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, plain(self._recipe), "recipe.json")
