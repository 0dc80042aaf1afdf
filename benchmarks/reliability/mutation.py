"""Random mutations of source lines: does a test notice?

    python -m benchmarks.reliability.mutation --rooms data,model,optim,parallel,run --count 300 --seed 1

    python -m benchmarks.reliability.mutation_map        first: which tests run which lines

One change at a time in a copy of `src` that stands first on PYTHONPATH: a number, a comparison or an operator is
another, a condition is negated, a result is None, a statement is gone. Against each run tests that run its lines
(`tests_of`). A mutant is killed where one fails, or where they last `PATIENCE` times as long as without it; one that
survives changes nothing that counts, or shows a test that is missing.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks import report
from benchmarks.reliability.mutation_map import TestMap

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hornbook"
ROOMS = ("data", "model", "optim", "parallel", "run")
TESTS_SECONDS = 30.0, 90.0
"""Of the tests in a first round against a mutant, and in a second where it survives; by what each takes without it."""
PATIENCE, START_SECONDS = 6, 60.0
"""They may last so many times as long, after the start of pytest."""
PINNED = "tests/settings/test_pinned.py"
"""Compares defaults, ranges and types of all settings."""
NEAR = 6
"""Fewer imports between a test and a file, and it may depend on it."""
EQUIVALENT: dict[str, str] = tomllib.loads(Path(__file__).with_name("equivalent_mutants.toml").read_text())
"""`Mutant.key` -> why no test can notice it. By hand."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    """Of the file, below the package."""
    lines: frozenset[int]
    """Tests that run one of them may notice: those of the statement of the change; none where it is in no function."""
    line: int
    source: str
    """The line of the change."""
    before: str
    after: str
    text: str
    """The whole file with the change, without its comments."""

    @property
    def key(self) -> str:
        """Names it while lines move."""
        return f"{self.path}: {self.source}: {self.before} -> {self.after}"


def changes(node: ast.AST) -> Iterator[Callable[[Any], ast.AST]]:
    """What can be done to a node; each gives the node for its place, and may change the one it is given."""
    match node:
        case ast.Constant(value=bool()):
            yield lambda each: ast.Constant(not each.value)
        case ast.Constant(value=int() | float()):
            yield lambda each: ast.Constant(each.value + 1)
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            yield lambda each: ast.Compare(each.left, [_COMPARISONS[type(each.ops[0])]()], each.comparators)
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            yield lambda each: ast.BinOp(each.left, _OPERATORS[type(each.op)](), each.right)
        case ast.If() | ast.While() | ast.IfExp():
            yield _negated
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield lambda _: ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Assign() | ast.AugAssign() | ast.Raise() | ast.Assert():
            yield lambda _: ast.Pass()


def _negated(each: Any) -> ast.AST:
    each.test = ast.UnaryOp(ast.Not(), each.test)
    return each


class _Swap(ast.NodeTransformer):
    """Put one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def places(tree: ast.Module) -> list[ast.AST]:
    """Nodes that can be changed: those in functions, and numbers of the module. Types are left alone."""
    found: list[ast.AST] = []

    def walk(node: ast.AST, inside: bool) -> None:
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if next(changes(node), None) is not None and (inside or isinstance(node, ast.Constant)):
            found.append(node)
        skipped = {"annotation", "returns", "decorator_list"} | ({"args"} if function else set())
        for name, value in ast.iter_fields(node):
            if name not in skipped:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        walk(child, inside or function)

    walk(tree, inside=False)
    return found


def mutant(path: Path, number: int) -> Mutant:
    """The change at a place of a file, counted as `places` does."""
    source = path.read_text()
    tree = ast.parse(source)
    node: Any = places(tree)[number]
    new = ast.fix_missing_locations(next(changes(node))(copy.deepcopy(node)))
    old, shown = (ast.unparse(each).splitlines()[0] for each in (node, new))
    text = ast.unparse(ast.fix_missing_locations(_Swap(node, new).visit(tree)))
    name = str(path.relative_to(PACKAGE))
    lines = _lines(ast.parse(source), node.lineno, node.end_lineno)
    return Mutant(name, lines, node.lineno, source.splitlines()[node.lineno - 1].strip(), old, shown, text)


def _lines(tree: ast.Module, first: int, last: int) -> frozenset[int]:
    """`Mutant.lines` of a change from a first line to a last one."""
    around = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and each.lineno <= first <= _end(each)]
    if any(isinstance(each, ast.FunctionDef) for each in around):
        return frozenset(range(max(each.lineno for each in around), last + 1))
    return frozenset()


def _end(each: ast.stmt) -> int:
    return each.end_lineno or each.lineno


def draw(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    """Some of all places in the rooms, each as likely as another."""
    files = [path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py"))]
    sites = [(path, number) for path in files for number in range(len(places(ast.parse(path.read_text()))))]
    return [mutant(*site) for site in random.Random(seed).sample(sites, min(count, len(sites)))]


def tests_of(each: Mutant, known: TestMap) -> list[list[str]]:
    """Rounds of tests that run the changed lines. Of kernels, whose lines coverage does not see, and of what a module
    or class holds outside functions, such as settings: of tests that run the file or whose imports lead there.

    The module's own tests come first, then those of files that import it (the quickest of each file, then the second of
    each ...), then of files that import what imports it, and so on; a round has as many as take its `TESTS_SECONDS`.
    Without any test there is none.
    """
    own = [f"{Path('tests', each.path).with_name(f'test_{Path(each.path).name}')}::"]
    if not each.lines:
        own.append(PINNED)
    away = distances(each.path)
    found = known.of_lines(each.path, each.lines)
    if not found:
        found = {test for test in known.seconds if away.get(test.split("::")[0], 100) < NEAR}
        found |= known.of_file(each.path)
    of_files = defaultdict[str, int](int)
    ranked = []
    for test in sorted(found, key=lambda test: (known.seconds[test], test)):
        file = test.split("::")[0]
        ranked.append((not test.startswith(tuple(own)), away.get(file, 100), of_files[file], known.seconds[test], test))
        of_files[file] += 1
    rounds, tests = list[list[str]](), [test for *_, test in sorted(ranked)]
    for limit in TESTS_SECONDS:
        taken = accumulate(known.seconds[test] for test in tests)
        count = max(sum(seconds <= limit for seconds in taken), 1)
        rounds.append(tests[:count])
        tests = tests[count:]
    return [each for each in rounds if each]


@cache
def _importers() -> dict[str, set[str]]:
    """Files of package and tests that import each module, by the names in their import lines."""
    found = defaultdict[str, set[str]](set)
    for path in (*PACKAGE.rglob("*.py"), *ROOT.joinpath("tests").rglob("*.py")):
        for start, names in re.findall(r"^\s*from ([\w.]+) import ([\w, ]+)", path.read_text(), re.MULTILINE):
            for module in (start, *(f"{start}.{name.split()[0]}" for name in names.split(",") if name.strip())):
                found[module].add(str(path.relative_to(ROOT)))
    return found


def distances(path: str) -> dict[str, int]:
    """Imports on the shortest way from each test file to a file of the package; those that only reach it lazily too."""
    found, near = dict[str, int](), {str(Path("src", "hornbook", path))}
    for distance in range(1, 100):
        names = {each.removeprefix("src/").removesuffix(".py").replace("/", ".") for each in near}
        near = {file for name in names for file in _importers()[name]} - set(found)
        found |= dict.fromkeys(near, distance)
        if not near:
            break
    return found


def outcome(source: Path, tests: list[str], seconds: float) -> tuple[bool, str]:
    """(whether a test fails or all last too long, which) with the package in `source`."""
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return True, ""
        finally:
            with suppress(ProcessLookupError):  # what tests left behind goes too
                os.killpg(process.pid, signal.SIGKILL)
    lines = said.decode(errors="replace").splitlines()
    failing = [line.split(" ", 1)[1].split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return process.returncode != 0, failing[0] if failing else ""


def judge(each: Mutant, source: Path, known: TestMap) -> dict[str, Any]:
    """What became of it: killed, survived or equivalent; untested where no test runs its file. With who killed it."""
    found: dict[str, Any] = {"mutant": each.key, "line": each.line}
    if each.key in EQUIVALENT:
        return found | {"verdict": "equivalent"}
    rounds = tests_of(each, known)
    if not rounds:
        return found | {"verdict": "untested"}
    file = source / "hornbook" / each.path
    before = file.read_bytes()
    for number, tests in enumerate(rounds):
        limit = START_SECONDS + PATIENCE * sum(known.seconds[test] for test in tests)
        try:
            file.write_text(each.text + "\n")
            killed, killer = outcome(source, tests, limit)
        finally:
            file.write_bytes(before)
        if killed:  # where no test is named: do they pass without the mutant?
            broken = not killer and outcome(source, tests, limit)[0]
            return found | {"verdict": "broken" if broken else "killed", "round": number, "by": killer}
    return found | {"verdict": "survived", "tests": sum(map(len, rounds))}


def run(rooms: str, count: int, seed: int, minutes: float, jobs: int, *, again: bool) -> None:
    """Judge mutants until they, or the minutes, are all; print and write them."""
    known, asked = TestMap(), {"seed": seed, "asked": count, "rooms": rooms}
    before = json.loads((report.RESULTS / "mutation.json").read_text())["mutants"] if again else []
    results = [found for found in before if found["verdict"] == "killed"]
    done = {found["mutant"] for found in results}
    drawn = [each for each in draw(rooms.split(","), count, seed) if each.key not in done]
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(jobs) as pool:
        sources = SimpleQueue[Path]()
        for number in range(jobs):
            sources.put(copied := Path(temporary, str(number)))
            shutil.copytree(ROOT / "src", copied, ignore=shutil.ignore_patterns("__pycache__"))

        def judged(each: Mutant) -> dict[str, Any] | None:
            if time.monotonic() > end:
                return None
            source = sources.get()
            try:
                return judge(each, source, known)
            finally:
                sources.put(source)

        for found in pool.map(judged, drawn):
            if found is not None:
                print(f"{found['verdict']:<10}  {found['mutant']}  {found.get('by', '')}", flush=True)
                results.append(found)
                write(results, asked)
        acquit(results, sources.get())
    counts = write(results, asked)
    print(report.table(list(counts), [list(counts.values())]))


def acquit(results: list[dict[str, Any]], source: Path) -> None:
    """Tests that fail without any mutant, when run alone, kill none: their mutants are broken, not killed."""
    killers = sorted({found["by"] for found in results if found.get("by")})
    while killers:
        failed, killer = outcome(source, killers, START_SECONDS + 3600.0)
        if not failed:
            return
        for found in results:
            if found.get("by") == killer:
                found["verdict"] = "broken"
        killers = [test for test in killers if test != killer] if killer else []


def write(results: list[dict[str, Any]], asked: dict[str, Any]) -> dict[str, int]:
    """Write what is known so far; returns the mutants of each verdict. What no test runs counts as survived."""
    names = ("killed", "survived", "equivalent", "untested", "broken")
    counts = {name: sum(result["verdict"] == name for result in results) for name in names}
    share = counts["killed"] / max(counts["killed"] + counts["survived"] + counts["untested"], 1)
    reasons = {result["mutant"]: EQUIVALENT[result["mutant"]] for result in results if result["mutant"] in EQUIVALENT}
    figures = {**asked, **counts, "killed_share": share, "equivalent_because": reasons, "mutants": results}
    report.write("mutation", figures)
    return counts


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description="Mutate source lines and see whether their tests fail.")
    parser.add_argument("--rooms", default=",".join(ROOMS), help="rooms of the package, with commas between")
    parser.add_argument("--count", type=int, default=300, help="mutants")
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn")
    parser.add_argument("--again", action="store_true", help="leave out those that the last report calls killed")
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged at the same time")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no further mutant after this time")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no tests are left behind
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
