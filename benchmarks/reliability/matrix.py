"""The failure matrix: every row's tests, one row after the other; writes results/failure_matrix.json and the page.

    python -m benchmarks.reliability.matrix              # rows that have not passed yet
    python -m benchmarks.reliability.matrix --again      # all rows
    python -m benchmarks.reliability.matrix --rows 16 19

`tests/run/failure_matrix.toml` names the tests. A row passes if all its tests pass; it is skipped, with the reason, if
none of them could run here. What a row found is on file before the next begins, so a killed run goes on where it was.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "run" / "failure_matrix.toml"
PAGE = ROOT / "docs" / "failure-matrix.md"
NAME = "failure_matrix"
LIMIT_SECONDS = 1800


def cases() -> list[dict[str, Any]]:
    """Rows of the table."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))["cases"]


def run_tests(tests: Sequence[str]) -> dict[str, Any]:
    """Run tests by their ids: outcome, counts, seconds, reasons."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow"]
        try:
            done = subprocess.run(
                [*command, f"--junitxml={found}", *tests],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return {"outcome": "failed", "why": f"no end within {LIMIT_SECONDS} s"}
        if not found.exists():
            return {"outcome": "failed", "why": (done.stdout + done.stderr).strip()[-300:]}
        return judge(xml.etree.ElementTree.parse(found).getroot(), done.returncode)


def judge(root: xml.etree.ElementTree.Element, code: int) -> dict[str, Any]:
    """The outcome of a row from what pytest wrote (`--junitxml`) and its exit code."""
    counts, why, seconds = Counter[str](), list[str](), 0.0
    for test in root.iter("testcase"):
        bad = next((each for each in test if each.tag in ("failure", "error", "skipped")), None)
        counts["passed" if bad is None else "skipped" if bad.tag == "skipped" else "failed"] += 1
        seconds += float(test.get("time", 0))
        if bad is not None:
            why.append(f"{test.get('name')}: {(bad.get('message') or '').splitlines()[0][:160]}")
    failed = counts["failed"] > 0 or code not in (0, 5)
    outcome = "failed" if failed else "passed" if counts["passed"] else "skipped"
    return {"outcome": outcome, "tests": dict(counts), "seconds": round(seconds, 1), "why": "; ".join(why)}


def play(case: dict[str, Any]) -> dict[str, Any]:
    """The outcome of one row."""
    row = {"number": case["number"], "words": case["words"], "proof": case.get("proof", [])}
    if not row["proof"]:
        return row | {"outcome": "not proved", "why": case["missing"]}
    return row | run_tests(row["proof"])


def is_current(row: dict[str, Any], case: dict[str, Any]) -> bool:
    """Whether a row on file passed with the tests that the table names now."""
    same = row["proof"] == case.get("proof", []) and row["words"] == case["words"]
    return same and row["outcome"] in ("passed", "skipped")


def page(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> str:
    """The table for the docs."""
    counts = Counter(row["outcome"] for row in rows)
    told = ", ".join(f"{counts[name]} {name}" for name in ("passed", "skipped", "failed", "not proved", "not run"))
    lines = ["# The failure matrix", "", "What goes wrong, and whether the tests of each row pass. Written by"]
    lines += ["`python -m benchmarks.reliability.matrix` from `tests/run/failure_matrix.toml`, which names tests.", ""]
    lines += [f"{told}. {report.machine_line(machine)}"]
    cells = [(row["number"], row["words"], row["outcome"], _told(row)) for row in rows]
    return "\n".join([*lines, *report.rows_of(["", "case", "outcome", "tests"], cells)])


def _told(row: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in row.get("tests", {}).items())
    return "; ".join(filter(None, [counts, str(row.get("why", "")).replace("|", "\\|").replace("\n", " ")]))


def all_rows(rows: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """What was found of every row of the table; of those that are still to be run, that."""
    still = {"outcome": "not run", "why": ""}
    return [rows.get(case["number"]) or {"number": case["number"], "words": case["words"]} | still for case in cases()]


def run(numbers: Sequence[int] = (), *, again: bool = False) -> bool:
    """Play rows, write the figures and the page after each; whether none failed."""
    rows = {row["number"]: row for row in report.known(NAME).get("rows", [])}
    for case in cases():
        row = rows.get(case["number"])
        wanted = case["number"] in numbers if numbers else again or row is None or not is_current(row, case)
        if not wanted:
            continue
        row = rows[case["number"]] = play(case)
        print(f"{row['number']:>3}  {row['outcome']:<10}  {row['words']}  {row.get('why', '')}", flush=True)
        ordered = [rows[number] for number in sorted(rows)]
        report.write(NAME, {"outcomes": dict(Counter(each["outcome"] for each in ordered)), "rows": ordered})
        PAGE.write_text(page(all_rows(rows), report.machine()), encoding="utf-8")
    return not any(row["outcome"] == "failed" for row in rows.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run the tests of every row of the failure matrix")
    parser.add_argument("--rows", type=int, nargs="+", default=[])
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    sys.exit(0 if run(given.rows, again=given.again) else 1)
