"""Which tests run which lines: the tests once under coverage, with the name of the test as context.

    python -m benchmarks.reliability.mutation_map           about twice as long as `make test`; writes scratch/mutation
    python -m benchmarks.reliability.mutation_map TEST...   adds these tests, new or changed, to what is there

Processes that a test starts are traced too. Compiled kernels are not, nor is what a process does that is killed.
Coverage imports this module before pytest does, hence PYTEST_DONT_REWRITE.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hornbook"
FOLDER = ROOT / "scratch" / "mutation"
RESULTS = FOLDER / "tests.json"
DATA = FOLDER / "coverage"
TEST_FILE = "HORNBOOK_MUTATION_TEST"
"""Environment variable: the file with the name of the test that runs now."""
CONFIG = f"""\
[run]
source = {PACKAGE}
data_file = {DATA}
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit
plugins = benchmarks.reliability.mutation_map
disable_warnings = no-data-collected,module-not-imported,module-not-measured,dynamic-conflict
"""

_results: dict[str, dict[str, float | bool]] = {}


def pytest_configure() -> None:
    """Name the file that says to processes of tests which test it is."""
    os.environ[TEST_FILE] = str(FOLDER / f"test-{os.getpid()}")


def pytest_runtest_protocol(item: "pytest.Item") -> None:
    """Lines that run from now on belong to this test."""
    Path(os.environ[TEST_FILE]).write_text(item.nodeid)
    _switch_to(item.nodeid)


def _switch_to(test: str) -> None:
    if (tracer := coverage.Coverage.current()) is not None:
        tracer.switch_context(test)


def coverage_init(registry: Any, options: Any) -> None:
    """Coverage calls this in each process where it starts: what is forked there belongs to the test of that time, which
    is not the one that started the process where tests share a server.
    """
    del registry, options
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    with suppress(KeyError, OSError):
        test = Path(os.environ[TEST_FILE]).read_text()
        os.environ["PYTEST_CURRENT_TEST"] = f"{test} (call)"
        _switch_to(test)


def pytest_runtest_logreport(report: "pytest.TestReport") -> None:
    """Keep what a test took, and whether it passed."""
    found = _results.setdefault(report.nodeid, {"seconds": 0.0, "passed": True})
    found["seconds"] += report.duration
    found["passed"] = bool(found["passed"]) and report.outcome == "passed"


def pytest_sessionfinish(session: "pytest.Session") -> None:
    """Write it, in the process that hears of all tests."""
    if not hasattr(session.config, "workerinput"):
        RESULTS.write_text(json.dumps(_results))


class TestMap:
    """Tests that passed, what each took, and the lines each ran."""

    __test__ = False

    def __init__(self) -> None:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        self.seconds: dict[str, float] = {name: each["seconds"] for name, each in results.items() if each["passed"]}
        self._data = coverage.CoverageData(str(DATA))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}

    def of_lines(self, path: str, lines: Iterable[int]) -> set[str]:
        """Tests that run one of the lines of a file, named below the package."""
        contexts = self._contexts(path)
        return {test for line in lines for test in contexts.get(line, ())}

    def of_file(self, path: str) -> set[str]:
        """Tests that run any of its lines after it was imported."""
        return {test for tests in self._contexts(path).values() for test in tests}

    def _contexts(self, path: str) -> dict[int, list[str]]:
        if path not in self._lines:
            found = defaultdict[int, list[str]](list)
            for line, names in self._data.contexts_by_lineno(str(PACKAGE / path)).items():
                found[line] = [test for test in map(_test_of, names) if test in self.seconds]
            self._lines[path] = found
        return self._lines[path]


def _test_of(context: str) -> str:
    """The test of a context: of a process that a test started, `PYTEST_CURRENT_TEST` when it began."""
    name = context.rsplit("|", maxsplit=1)[-1]
    return name.rsplit(" (", 1)[0] if name.endswith((" (call)", " (setup)", " (teardown)")) else name


def measure(tests: tuple[str, ...] = ()) -> None:
    """Run all tests and write their map; or run those that are named, and add them to it."""
    if not tests:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    config = FOLDER / "coveragerc"
    config.write_text(CONFIG)
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    environment = os.environ | {
        "COVERAGE_PROCESS_START": str(config),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "worksteal",
        "-p",
        "benchmarks.reliability.mutation_map",
    ]
    subprocess.run([*command, *tests], cwd=ROOT, env=environment, check=False)
    RESULTS.write_text(json.dumps(before | json.loads(RESULTS.read_text(encoding="utf-8"))))
    whole = coverage.Coverage(config_file=str(config))
    whole.load()
    whole.combine()
    whole.save()


if __name__ == "__main__":
    measure(tuple(sys.argv[1:]))
