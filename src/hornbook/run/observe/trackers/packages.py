"""Trackers of other packages (`log.trackers`), and which of all trackers a recipe asks for."""

import contextlib
import functools
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.observe.trackers.event_files import EventFiles, require_tensorboard
from hornbook.run.observe.trackers.metrics import of_evaluation, of_step
from hornbook.run.observe.trackers.mlflow_run import MlflowRun
from hornbook.run.observe.trackers.tracker import Tracker
from hornbook.settings.recipe import Recipe
from hornbook.settings.schema import plain
from hornbook.settings.training import LogConfig, MlflowConfig, TrackioConfig, WandbConfig


def make_trackers(recipe: Recipe, run: RunDir) -> Iterator[Tracker]:
    """Those of a recipe; their packages are imported in their threads."""
    if recipe.log.tensorboard:
        yield EventFiles(run)
    for config in recipe.log.trackers:
        if isinstance(config, MlflowConfig):
            yield MlflowRun(config, recipe, run, functools.partial(_identity, run))
        else:
            yield PackageTracker(config, recipe, run)


def require_trackers(config: LogConfig) -> None:
    """Raise UsageError with the remedy where a tracker's package is not installed."""
    require_tensorboard(config)
    for each in config.trackers:
        if importlib.util.find_spec(each.kind) is None:
            extra = "mlflow" if each.kind == "mlflow" else "track"
            raise UsageError(f"log.trackers needs {each.kind}, which is not installed: {install_command(extra)}")


class PackageTracker:
    """wandb or trackio, which are called alike: `init`, `log`, `finish`."""

    def __init__(self, config: WandbConfig | TrackioConfig, recipe: Recipe, run: RunDir) -> None:
        self.name = config.kind
        self._config, self._recipe, self._run = config, recipe, run
        self._module: Any = None
        self._first_step = 0
        """Steps before it are known to Trackio, which would show them twice."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Send the metrics of a step."""
        self._send(record["step"], of_step(record))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Send the metrics of an evaluation."""
        self._send(record["step"], of_evaluation(record))

    def sample(self, record: Mapping[str, Any]) -> None:
        """Send a sample of text to wandb, as a table."""
        if isinstance(self._config, WandbConfig):
            columns = ["step", "prompt", "text"]
            module = self._module = self._module or self._open()
            table = module.Table(columns=columns, data=[[record[name] for name in columns]])
            module.log({"sample": table}, step=record["step"])

    def close(self) -> None:
        """End the run in the tracker."""
        if self._module is not None:
            self._module.finish()

    def abandon(self) -> None:
        """End the process of wandb, for which Python would wait over a minute at exit; RUN/wandb keeps what it got."""
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.name().startswith(self.name):
                    child.kill()
        before = sys.unraisablehook  # what wandb registered for the exit misses its process
        sys.unraisablehook = lambda found: None if isinstance(found.exc_value, ConnectionError) else before(found)

    def _send(self, step: int, metrics: Iterator[tuple[str, float]]) -> None:
        self._module = self._module or self._open()
        if step >= self._first_step:
            self._module.log({tag: value for tag, value in metrics if math.isfinite(value)}, step=step)

    def _open(self) -> Any:
        """Import the package and begin a run that a later attempt goes on with."""
        module = importlib.import_module(self._config.kind)
        identity = _identity(self._run)
        common: dict[str, Any] = {"project": self._config.project, "resume": "allow", "config": plain(self._recipe)}
        if isinstance(self._config, WandbConfig):
            os.environ.setdefault("WANDB_SILENT", "true")
            mode = self._config.mode or os.environ.get("WANDB_MODE") or "offline"
            common |= {"mode": mode, "dir": str(self._run.path), "id": identity, "name": self._run.name}
            module.init(**common)
        else:
            _print_to_stderr(self.name)
            known = module.init(**common, name=identity)  # the name by which Trackio knows a run that goes on
            self._first_step = getattr(known, "_next_step", 0)
        return module


def _print_to_stderr(package: str) -> None:
    """Let the modules of a package print to stderr: stdout has the answer of the command."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            vars(module)["print"] = functools.partial(print, file=sys.stderr)


def _identity(run: RunDir) -> str:
    """The same for all attempts of a run, and of no other: its name, and how its ledger begins.

    Another run in a folder of the same name, or in the same folder later, is not taken for one that goes on.
    """
    first = next(read_records(run.events), {})
    name = "".join(each if each.isalnum() else "-" for each in run.name)
    return f"{name[:48]}-{str(first.get('sha', ''))[:12]}"
