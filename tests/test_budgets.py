"""Budgets of the house: how wide a folder, how long a file and a function, how large a room may be.

A budget may be raised in the commit that needs it, with the reason in its message.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "hornbook"
ENTRIES = 16
FILE_LINES = 360
FUNCTION_LINES = 60
ROOM_LINES = {
    "cli": 9_090,
    "data": 5_870,
    "evals": 3_310,
    "files": 1_800,
    "kernels": 1_050,
    "model": 17_810,
    "optim": 3_800,
    "parallel": 7_170,
    "plan": 6_660,
    "run": 20_724,
    "serve": 1_700,
    "settings": 2_870,
    "studio": 1_050,
    "text": 18_040,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of every function, decorators aside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{path.relative_to(PACKAGE)}: {node.name}", node.end_lineno - node.lineno + 1


def classes(path: Path) -> Iterator[str]:
    """Name of every class of a file, inner ones too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


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


def test_no_room_is_too_large() -> None:
    rooms = Counter[str]()
    for path in FILES:
        if len(parts := path.relative_to(PACKAGE).parts) > 1:
            rooms[parts[0]] += num_lines(path)
    assert rooms.keys() == ROOM_LINES.keys()
    assert {room: lines for room, lines in rooms.items() if lines > ROOM_LINES[room]} == {}


@pytest.mark.parametrize("room", ROOM_LINES)
def test_no_class_name_stands_twice_in_a_room(room: str) -> None:
    """A configuration and what it builds have names of their own, as `GLUConfig` and `GLU`."""
    names = Counter(name for path in FILES if path.relative_to(PACKAGE).parts[0] == room for name in classes(path))
    assert [name for name, times in names.items() if times > 1] == []
