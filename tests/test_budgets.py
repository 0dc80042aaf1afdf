"""Budgets of the house: how wide a folder, how long a file and a function, how large the package may be.

The total is one number: whoever needs more lines in one place finds fewer in another, in the same commit.
"""

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "hornbook"
ENTRIES = 16
FILE_LINES = 400
FUNCTION_LINES = 60
TOTAL_LINES = 115688
"""Of Python and tables, recipes aside: whoever adds lines removes as many elsewhere."""
OTHER_LINES = {"benchmarks": 13513, "tests": 88153}
"""Lines of Python in the other folders: whoever removes some lowers the number."""
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@functools.cache
def definitions(path: Path) -> list[ast.AST]:
    """Functions and classes of a file, inner ones too."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of every function, decorators aside."""
    for node in definitions(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{path.relative_to(PACKAGE)}: {node.name}", node.end_lineno - node.lineno + 1


def classes(path: Path) -> Iterator[str]:
    """Name of every class of a file, inner ones too."""
    return (node.name for node in definitions(path) if isinstance(node, ast.ClassDef))


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    folders = {path.parent for path in FILES} | {path.parent.parent for path in FILES if path.parent != PACKAGE}
    entries = {
        str(folder.relative_to(PACKAGE)): sum(
            (each.suffix == ".py" and each.stem not in ("__init__", "__main__")) or (each / "__init__.py").exists()
            for each in folder.iterdir()
        )
        for folder in folders
    }
    assert {folder: count for folder, count in entries.items() if count > ENTRIES} == {}


def test_no_file_is_too_long() -> None:
    assert {str(path.relative_to(PACKAGE)): num_lines(path) for path in FILES if num_lines(path) > FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    assert {name: lines for path in FILES for name, lines in functions(path) if lines > FUNCTION_LINES} == {}


def test_the_package_is_not_too_large() -> None:
    tables = [path for path in PACKAGE.rglob("*.toml") if path.parent.name != "recipes"]
    assert sum(map(num_lines, [*FILES, *tables])) <= TOTAL_LINES


@pytest.mark.parametrize("folder", OTHER_LINES)
def test_the_other_folders_are_not_too_large(folder: str) -> None:
    files = (PACKAGE.parents[1] / folder).rglob("*.py")
    assert sum(map(num_lines, files)) <= OTHER_LINES[folder]


@pytest.mark.parametrize("room", ROOMS)
def test_no_class_name_stands_twice_in_a_room(room: str) -> None:
    """A configuration and what it builds have names of their own, as `GLUConfig` and `GLU`."""
    names = Counter(name for path in FILES if path.relative_to(PACKAGE).parts[0] == room for name in classes(path))
    assert [name for name, times in names.items() if times > 1] == []
