"""The table of failures names tests and benchmarks that exist, and every row of it is proved or says why not."""

import ast
import importlib.util
import random
import tomllib
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
CASES = tomllib.loads(Path(__file__).with_name("failure_matrix.toml").read_text())["cases"]


@cache
def functions_of(path: str) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_all_rows_are_there_once() -> None:
    assert [case["number"] for case in CASES] == list(range(1, 81))
    assert len({case["words"] for case in CASES}) == 80


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["number"])
def test_what_proves_a_row_exists(case: dict) -> None:
    assert bool(case.get("proof")) != bool(case.get("missing"))
    for test in case.get("proof", ()):
        path, name = test.split("::")
        assert name.partition("[")[0] in functions_of(path), test
    for module in case.get("benchmarks", ()):
        assert importlib.util.find_spec(module) is not None, module


@pytest.mark.parametrize(
    ("tests", "code", "outcome"),
    [
        ([""], 0, "passed"),
        (["", "<skipped message='no strace'/>"], 0, "passed"),
        (["<skipped message='no strace'/>"], 0, "skipped"),
        (["", "<failure message='assert 1 == 2'/>"], 1, "failed"),
        ([""], 3, "failed"),
        ([], 4, "failed"),
    ],
)
def test_the_outcome_of_a_row(monkeypatch: pytest.MonkeyPatch, tests: list[str], code: int, outcome: str) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.reliability import matrix

    found = "".join(f"<testcase name='t{n}' time='1'>{inner}</testcase>" for n, inner in enumerate(tests))
    judged = matrix.judge(ElementTree.fromstring(f"<testsuite>{found}</testsuite>"), code)
    assert judged["outcome"] == outcome
    assert ("no strace" in judged["why"]) == any("strace" in each for each in tests)


def test_the_plan_of_a_soak_counts_the_restarts_before_each_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks pass the steps of those before again: without the number a fault would strike twice."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.reliability.soak import plans
    from hornbook.run.job.fault_plan import parse_plan

    made = [plan for seed in range(20) for plan in plans(6000, 300, 50, random.Random(seed)) if plan]
    assert {fault.do for plan in made for fault in parse_plan({"faults": plan}, "soak").faults} >= {
        *("kill9", "stop", "exc", "exit", "enospc", "eio", "clock_jump", "slow", "sigterm"),
    }
    for plan in made:
        generations = [fault["at"]["generation"] for fault in plan]
        ended = [fault["do"] in ("kill9", "stop", "exc", "exit") and "to" not in fault for fault in plan]
        assert generations == [sum(ended[:number]) for number in range(len(plan))]
        ends = [number for number, fault in enumerate(plan) if fault.get("to") == "supervisor"]
        assert ends in ([], [len(plan) - 1])
    assert list(plans(6000, 300, 50, random.Random(3))) == list(plans(6000, 300, 50, random.Random(3)))


def test_rows_of_rehearsals_are_rows_of_the_table() -> None:
    from hornbook.run.diagnose.rehearsal.cases import all_cases

    assert {number for case in all_cases() for number in case.rows} <= {case["number"] for case in CASES}
    for case in all_cases():
        for world in (1, 2):
            assert case.plan(world).faults
            assert case.codes(world)[-1] in ("0", "9")
