"""The tests marked `gpu`, by as many processes as help. Those that passed before are left out.

A dry run collects them: on a machine without a GPU they are skipped.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.worker import begin

PROCESSES = 6
PYTEST = [sys.executable, "-m", "pytest", "-o", "addopts=--strict-markers --import-mode=importlib", "-m", "gpu"]
"""Without the `-q` of the project's options: it takes a test's line from `-v`, and its name from a list of them."""
KINDS = "PASSED|FAILED|ERROR|SKIPPED"
LINE = re.compile(rf"(?:\[gw\d+\] \[ *\d+%\] )?(?P<a>{KINDS})? ?(?P<test>tests/\S+::.*?)(?: (?P<b>{KINDS}).*)?$")
"""A line of `pytest -v`, with pytest-xdist or without."""


def main() -> int:
    """Run them and write each outcome as it comes; pytest's exit code."""
    output, spec, _ = begin()
    if spec["dry_run"]:
        return collect(output)
    found: dict[str, str] = dict.fromkeys(output.before.get("passed", []), "PASSED")
    code, tail = run(files(), found, lambda tail: output.write(summary(found, tail)))
    output.write(summary(found, tail))
    print("".join(tail[-40:]))
    return code


def run(names: list[str], found: dict[str, str], known: Callable[[list[str]], None]) -> tuple[int, list[str]]:
    """Run the tests of files but those `found`; put their outcomes there, and call `known` after each.

    Returns pytest's exit code and the last lines that it said.
    """
    words = [*PYTEST, *names, "-v", "--tb=short", "--show-capture=no"]
    words += [part for name in found for part in ("--deselect", name)]
    if importlib.util.find_spec("xdist"):
        words += ["-n", str(PROCESSES), "--dist", "worksteal"]
    tail: list[str] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-400:], line]
            if (outcome := outcome_of(line)) is not None:
                found[outcome[0]] = outcome[1]
                known(tail)
    return process.returncode, tail


def files() -> list[str]:
    """Files with such tests; others may import what is not there."""
    found = (path for path in Path("tests").rglob("test_*.py") if "from tests.gpu import" in path.read_text())
    return sorted(map(str, found))


def outcome_of(line: str) -> tuple[str, str] | None:
    """(test, outcome) of a line of pytest's; None of others."""
    match = LINE.match(line.strip())
    if match is None or not (match["a"] or match["b"]):
        return None
    return match["test"].strip(), match["a"] or match["b"]


def summary(found: dict[str, str], tail: list[str]) -> dict[str, Any]:
    """Names by outcome, and the end of what pytest said where something failed."""
    names = {kind: [test for test, each in found.items() if each == kind] for kind in ("PASSED", "FAILED", "ERROR")}
    failed = [*names["FAILED"], *names["ERROR"]]
    return {"passed": names["PASSED"], "failed": failed, "output": "".join(tail)[-20000:] if failed else ""}


def collect(output: Any) -> int:
    """Count them."""
    answer = subprocess.run([*PYTEST, *files(), "--collect-only", "-q"], capture_output=True, text=True, check=False)
    count = sum("::" in line for line in answer.stdout.splitlines())
    output.write({"collected": count})
    return answer.returncode or int(count == 0)


if __name__ == "__main__":
    sys.exit(main())
