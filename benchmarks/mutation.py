"""Random mutations of source lines: does a test notice?

    python -m benchmarks.mutation --rooms data,model,optim,parallel,run --count 300 --seed 1

One change at a time in a copy of `src` that stands first on PYTHONPATH: a number, a comparison or an operator is
another, a condition is negated, a result is None, a statement is gone. Against each run the tests nearest to its
module (`rings_of`), and those further off where the near ones pass. A mutant is killed where they fail or last
`PATIENCE` times as long as without it; one that survives changes nothing that counts, or shows a test that is missing.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import report

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "hornbook"
TESTS = {file.relative_to(ROOT) for file in (ROOT / "tests").rglob("test_*.py")}
ROOMS = ("data", "model", "optim", "parallel", "run")
PATIENCE, LEAST_SECONDS, GREATEST_SECONDS = 4, 20.0, 120.0
"""Of a mutant's tests: a multiple of what they take without it, between two bounds."""
OTHERS = 4
"""Test files of a ring, at most; the smallest."""
EQUIVALENT: dict[str, str] = {}
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
    line: int
    source: str
    """The line."""
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
    shown = [ast.unparse(each).splitlines()[0] for each in (node, new)]
    text = ast.unparse(ast.fix_missing_locations(_Swap(node, new).visit(tree)))
    return Mutant(
        str(path.relative_to(PACKAGE)), node.lineno, source.splitlines()[node.lineno - 1].strip(), *shown, text
    )


def draw(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    """Some of all places in the rooms, each as likely as another."""
    files = [path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py"))]
    sites = [(path, number) for path in files for number in range(len(places(ast.parse(path.read_text()))))]
    return [mutant(*site) for site in random.Random(seed).sample(sites, min(count, len(sites)))]


@cache
def rings_of(path: str) -> tuple[tuple[str, ...], ...]:
    """Test files of a module, the nearest first: its own and the golden pins of its room; others that name it; those of
    the modules that import it, or of the modules that import these, and the room's parity with its references.
    """
    module = Path(path).with_suffix("")
    near = [_mirrored(module), Path("tests", module.parts[0], "test_golden.py")]
    naming = _smallest(file for file in TESTS if _names(ROOT / file, module))
    above = _importers(module)
    far = _smallest(map(_mirrored, above)) or _smallest(_mirrored(each) for one in above for each in _importers(one))
    far.append(Path("tests", module.parts[0], "test_parity.py"))
    seen = set[Path]()
    rings = []
    for ring in (near, naming, far):
        rings.append(tuple(str(file) for file in ring if file in TESTS and file not in seen))
        seen |= set(ring)
    return tuple(ring for ring in rings if ring)


def _mirrored(module: Path) -> Path:
    return "tests" / module.parent / f"test_{module.name}.py"


def _smallest(files: Iterable[Path]) -> list[Path]:
    return sorted({*files} & TESTS, key=lambda file: (ROOT / file).stat().st_size)[:OTHERS]


@cache
def _importers(module: Path) -> list[Path]:
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if _names(file, module)]
    return [file.relative_to(PACKAGE).with_suffix("") for file in files]


def _names(file: Path, module: Path) -> bool:
    """Whether a file imports a module."""
    return f"from hornbook.{'.'.join(module.parts)} import" in _text(file)


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def outcome(source: Path, tests: tuple[str, ...], seconds: float) -> tuple[bool, float]:
    """(whether the tests fail or last too long, seconds they took) with the package in `source`."""
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    begun = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            failed = process.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            failed = True
        finally:
            with suppress(ProcessLookupError):  # what tests left behind goes too
                os.killpg(process.pid, signal.SIGKILL)
    return failed, time.monotonic() - begun


def judge(each: Mutant, source: Path, plain: dict[tuple[str, ...], float]) -> str:
    """What became of it: killed, survived or equivalent; untested where no test names the module or what imports it.

    Broken: all its tests fail without it too, or take too long. plain: seconds of tests without a mutant, 0 for such;
    it is filled here.
    """
    rings = rings_of(each.path)
    if each.key in EQUIVALENT:
        return "equivalent"
    if not rings:
        return "untested"
    sound = False
    for tests in rings:
        if tests not in plain:
            failed, seconds = outcome(source, tests, GREATEST_SECONDS)
            plain[tests] = 0.0 if failed else seconds
        if plain[tests]:
            sound = True
            if _fails(each, source, tests, min(max(PATIENCE * plain[tests], LEAST_SECONDS), GREATEST_SECONDS)):
                return "killed"
    return "survived" if sound else "broken"


def _fails(each: Mutant, source: Path, tests: tuple[str, ...], seconds: float) -> bool:
    file = source / "hornbook" / each.path
    before = file.read_bytes()
    try:
        file.write_text(each.text + "\n")
        return outcome(source, tests, seconds)[0]
    finally:
        file.write_bytes(before)


def run(rooms: str = ",".join(ROOMS), count: int = 300, seed: int = 1, minutes: float = 600.0) -> None:
    """Judge mutants until they, or the minutes, are all; print and write them."""
    results: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    plain: dict[tuple[str, ...], float] = {}
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for each in draw(rooms.split(","), count, seed):
            if time.monotonic() > end:
                break
            verdict = judge(each, source, plain)
            print(f"{verdict:<10}  {each.path}:{each.line}  {each.before}  ->  {each.after}", flush=True)
            results.append({"verdict": verdict, "line": each.line, "mutant": each.key})
            counts = write(results, {"seed": seed, "asked": count, "rooms": rooms})
    print(report.table(list(counts), [list(counts.values())]))


def write(results: list[dict[str, Any]], asked: dict[str, Any]) -> dict[str, int]:
    """Write what is known so far; returns the mutants of each verdict."""
    names = ("killed", "survived", "equivalent", "untested", "broken")
    counts = {name: sum(result["verdict"] == name for result in results) for name in names}
    share = counts["killed"] / max(counts["killed"] + counts["survived"], 1)
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
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no further mutant after this time")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no tests are left behind
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
