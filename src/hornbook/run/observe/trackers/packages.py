"""Trackers of other packages (`log.trackers`), and which of all trackers a recipe asks for."""

import importlib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.config import LogConfig, TrackioConfig, WandbConfig
from hornbook.run.observe.trackers.event_files import EventFiles, require_tensorboard
from hornbook.run.observe.trackers.metrics import of_evaluation, of_step
from hornbook.run.observe.trackers.tracker import Tracker
from hornbook.settings.recipe import Recipe
from hornbook.settings.schema import plain


def make_trackers(recipe: Recipe, run: RunDir) -> Iterator[Tracker]:
    """Those of a recipe; their packages are imported in their threads."""
    if recipe.log.tensorboard:
        yield EventFiles(run)
    for config in recipe.log.trackers:
        yield PackageTracker(config, recipe, run)


def require_trackers(config: LogConfig) -> None:
    """Raise UsageError with the remedy where a tracker's package is not installed."""
    require_tensorboard(config)
    for each in config.trackers:
        if importlib.util.find_spec(each.kind) is None:
            raise UsageError(f"log.trackers needs {each.kind}, which is not installed: {install_command('track')}")


class PackageTracker:
    """wandb or trackio, which are called alike: `init`, `log`, `finish`."""

    def __init__(self, config: WandbConfig | TrackioConfig, recipe: Recipe, run: RunDir) -> None:
        self.name = config.kind
        self._config, self._recipe, self._run = config, recipe, run
        self._module: Any = None

    def step(self, record: Mapping[str, Any]) -> None:
        """Send the metrics of a step."""
        self._send(record["step"], of_step(record))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Send the metrics of an evaluation."""
        self._send(record["step"], of_evaluation(record))

    def close(self) -> None:
        """End the run in the tracker."""
        if self._module is not None:
            self._module.finish()

    def _send(self, step: int, metrics: Iterator[tuple[str, float]]) -> None:
        self._module = self._module or self._open()
        self._module.log({tag: value for tag, value in metrics if math.isfinite(value)}, step=step)

    def _open(self) -> Any:
        """Import the package and begin a run that a later attempt goes on with."""
        module = importlib.import_module(self._config.kind)
        identity = _identity(self._run)
        common: dict[str, Any] = {"project": self._config.project, "resume": "allow", "config": plain(self._recipe)}
        if isinstance(self._config, WandbConfig):
            os.environ.setdefault("WANDB_SILENT", "true")
            common |= {"mode": self._config.mode, "dir": str(self._run.path), "id": identity, "name": self._run.name}
        else:
            common["name"] = identity  # by which Trackio knows a run that goes on
        module.init(**common)
        return module


def _identity(run: RunDir) -> str:
    """The same for all attempts of a run, and of no other: its name, and how its ledger begins.

    Another run in a folder of the same name, or in the same folder later, is not taken for one that goes on.
    """
    first = next(read_records(run.events), {})
    name = "".join(each if each.isalnum() else "-" for each in run.name)
    return f"{name[:48]}-{str(first.get('sha', ''))[:12]}"
