"""A plugin of pytest: outcomes and tracebacks of tests are written as they come, so a run that is cut keeps them.

The variable GPU_TESTS has a JSON object: `output` (file of figures), `failures` (file of one JSON line per failed
test), `passed` (tests that are left out), `seconds` (limit of a test). A worker whose device is lost or whose test
reaches the limit ends, and pytest-xdist starts another; its stacks are written first, also where it waits in C code.
"""

import faulthandler
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.device import LOST
from benchmarks.gpu.output import Output

VARIABLE = "GPU_TESTS"
TEXT_CHARACTERS, STDERR_CHARACTERS = 8000, 2000
"""Last characters of a traceback, and of what the test wrote to stderr."""


class Recorder:
    """Outcomes of the tests of one process of pytest."""

    def __init__(self, spec: dict[str, Any], plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins
        self._left_out = frozenset(spec["passed"])
        self._is_worker = "PYTEST_XDIST_WORKER" in os.environ
        self._is_lost, self._seconds = False, spec["seconds"]
        self._figures: dict[str, Any] = {"passed": [*spec["passed"]], "failed": {}, "skipped": 0}
        self._output, self._failures = Output(spec["output"]), Path(spec["failures"])
        self._failures.parent.mkdir(parents=True, exist_ok=True)
        if self._is_worker:
            path = self._failures.with_suffix(f".{os.environ['PYTEST_XDIST_WORKER']}.stacks")
            self._stacks = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        else:
            self._failures.write_text("")
            self._output.write(self._figures)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that passed before."""
        items[:] = [item for item in items if item.nodeid not in self._left_out]

    def pytest_runtest_logstart(self) -> None:
        """Begin to count the time of a test."""
        if self._is_worker:
            faulthandler.dump_traceback_later(self._seconds, file=self._stacks, exit=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected."""
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a phase of a test."""
        if not self._is_worker and report.when == "call" and report.passed:
            self._figures["passed"].append(report.nodeid)
        self._figures["skipped"] += report.skipped
        self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and LOST.search(report.longreprtext + report.capstderr):
            self._is_lost = True
        if self._is_worker:
            return
        # When a worker ends, pytest-xdist reports its test once more: the first text says why.
        if report.failed and report.nodeid not in self._figures["failed"]:
            text = report.longreprtext[-TEXT_CHARACTERS:] + report.capstderr[-STDERR_CHARACTERS:]
            text += self._stacks_of_ended_workers()
            self._figures["failed"][report.nodeid] = text
            self._figures["passed"] = [name for name in self._figures["passed"] if name != report.nodeid]
            with self._failures.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": report.nodeid, "text": text}) + "\n")
            if terminal := self._plugins.get_plugin("terminalreporter"):
                terminal.write_line(f"\nFAILED {report.nodeid}\n{text}")
        self._output.write(self._figures)

    def _stacks_of_ended_workers(self) -> str:
        """Stacks that workers wrote at the limit of a test, once."""
        texts: list[str] = []
        for path in self._failures.parent.glob(f"{self._failures.stem}.*.stacks"):
            if text := path.read_text(errors="replace"):
                texts.append(f"\n{text[:TEXT_CHARACTERS]}")
                path.unlink()
        return "".join(texts)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """End a process whose device is lost."""
        if self._is_worker:
            faulthandler.cancel_dump_traceback_later()
        if self._is_lost and self._is_worker:
            os._exit(70)
        if self._is_lost and not self._plugins.hasplugin("dsession"):
            pytest.exit("the device is lost for this process, and there is no pytest-xdist to start another", 1)


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder."""
    recorder = Recorder(json.loads(os.environ[VARIABLE]), config.pluginmanager)
    config.pluginmanager.register(recorder, "gpu-failures")
