"""The tests marked `gpu`, by as many processes as help; `failures` writes outcomes and tracebacks as they come.

A dry run collects and starts them too: on a machine without a GPU they are skipped. Tests that passed before are left
out.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.device import ROOT
from benchmarks.gpu.failures import VARIABLE
from benchmarks.gpu.output import arguments

PROCESSES, DRY_PROCESSES, TEST_SECONDS = 6, 2, 100
"""Workers of pytest-xdist, and the time limit of a test in one of them."""
PYTEST = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-m", "gpu", "--tb=short", "--no-summary"]
PYTEST += ["-o", "addopts=--strict-markers --import-mode=importlib", "-p", "benchmarks.gpu.failures"]
PYTEST += ["-p", "no:benchmark"]  # beside pytest-xdist it warns that it is off, and warnings are errors
NO_TESTS = 5
"""pytest's exit code."""


def main() -> int:
    """pytest's exit code; 0 where all tests passed before."""
    output, spec = arguments()
    passed, path = output.before.get("passed", []), sys.argv[1]
    failures = spec.get("failures", str(ROOT / "build" / "gpu-failures.jsonl"))
    recorder = {"output": path, "failures": failures, "passed": passed}
    recorder["seconds"] = spec.get("test_seconds", TEST_SECONDS)
    words = [*PYTEST, *spec.get("files", files())]
    processes = spec.get("processes", DRY_PROCESSES if spec["dry_run"] else PROCESSES)
    if processes and importlib.util.find_spec("xdist"):
        words += ["-n", str(processes), "--dist", "worksteal"]
    code = subprocess.run(words, env={**os.environ, VARIABLE: json.dumps(recorder)}, check=False).returncode
    return 0 if code == NO_TESTS and passed else code


def files() -> list[str]:
    """Files with such tests; others may import what is not there."""
    paths = (path for path in Path("tests").rglob("test_*.py") if "from tests.gpu import" in path.read_text())
    return sorted(map(str, paths))


if __name__ == "__main__":
    sys.exit(main())
