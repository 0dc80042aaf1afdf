"""Prints the size and the shape of the package, `python -m scripts.house [FOLDER ...]`: a column for each checkout.

Arrows are import statements between two rooms, whatever their place in a file; `settings`, `files` and the `config` of
every room are one room, as in tests/test_layers.py. A name that is set from outside is one that `thing.name = value`
gives to an object which is not `self`, and that a class of another module defines, and none of the same module.
"""

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parents[1]


def main(folders: list[str]) -> None:
    """Print one row for each figure."""
    columns = [figures(Path(folder)) for folder in folders or [str(HERE)]]
    for name in columns[0]:
        print(f"{name:44}", *(f"{column[name]:>12,}" for column in columns))


def figures(root: Path) -> dict[str, int]:
    """Of one checkout."""
    source = root / "src"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    trees = {module_of(path, source): ast.parse(text) for path, text in texts.items()}
    full = [path for path, text in texts.items() if text.strip()]
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    graph = {name: set(imports(tree, trees)) for name, tree in trees.items()}
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    files = Counter(path.name for path in full)
    return {
        "lines of Python in src": sum(map(num_lines, texts.values())),
        "statements": sum(isinstance(node, ast.stmt) for node in nodes),
        "files with content": len(full),
        "files of at most 40 lines": sum(num_lines(texts[path]) <= 40 for path in full),
        "functions": len(lengths),
        "lines of a function, median": round(statistics.median(lengths)),
        "lines of a function, 90 % have at most": lengths[len(lengths) * 9 // 10],
        "lines of the longest function": lengths[-1],
        "pairs of rooms with arrows": len(pairs(graph, 1)),
        "pairs of rooms that import each other": both_ways(pairs(graph, 1)),
        "pairs of parts of run with arrows": len(pairs(graph, 2, "run")),
        "pairs of parts of run, both ways": both_ways(pairs(graph, 2, "run")),
        "modules in import circles": sum(len(each) for each in circles(graph)),
        "class names that occur again": sum(times > 1 for times in classes.values()),
        "file names that occur again": sum(times > 1 for times in files.values()),
        "names set from outside their class": len(set_from_outside(trees)),
        "lines of Python in benchmarks": folder_lines(root / "benchmarks"),
        "lines of Python in tests": folder_lines(root / "tests"),
    }


def num_lines(text: str) -> int:
    """Of a text."""
    return len(text.splitlines())


def folder_lines(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(num_lines(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))


def module_of(path: Path, source: Path) -> str:
    """Dotted name of a file."""
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Modules of the package that a module imports, at its start or later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if (target := whole if whole in known else node.module) in known:
                    yield target
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def pairs(graph: dict[str, set[str]], level: int, room: str = "") -> set[tuple[str, str]]:
    """(importer, imported) among rooms (level 1), or parts of a room (level 2); modules above are one."""

    def part(module: str) -> str:
        names = module.split(".")
        if level == 1 and (module == "hornbook.__main__" or names[1:2] == ["cli"]):
            return "cli"
        is_base = level == 1 and (len(names) < 3 or names[1] in ("settings", "files") or names[2] == "config")
        return names[level] if len(names) > level + 1 and not is_base else ""

    inside = {name for name in graph if not room or name.split(".")[1:2] == [room]}
    found = {(part(name), part(target)) for name in inside for target in graph[name] & inside}
    return {(one, other) for one, other in found if one != other}


def both_ways(found: set[tuple[str, str]]) -> int:
    """Pairs of which each imports the other."""
    return sum((other, one) in found for one, other in found) // 2


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that reach each other by imports."""

    def reached(name: str, edges: dict[str, set[str]]) -> set[str]:
        seen, todo = set[str](), [name]
        while todo:
            for target in edges[todo.pop()] - seen:
                seen.add(target)
                todo.append(target)
        return seen

    backward = defaultdict[str, set[str]](set)
    for name, targets in graph.items():
        for target in targets:
            backward[target].add(name)
    groups = {frozenset(reached(name, graph) & reached(name, backward)) for name in graph}
    return [set(group) for group in groups if group]


def set_from_outside(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """(module, name) of what is given to objects of other modules' classes."""
    defined = {module: set(defined_names(tree)) for module, tree in trees.items()}
    everywhere = set[str]().union(*defined.values())
    return {
        (module, target.attr)
        for module, tree in trees.items()
        for target, is_self in stored(tree)
        if not is_self and target.attr in everywhere - defined[module]
    }


def stored(tree: ast.AST) -> Iterator[tuple[ast.Attribute, bool]]:
    """Attributes that are assigned, and whether those of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node, isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Names that classes of a module define: methods, annotated attributes, what they assign to `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (each.name for each in node.body if isinstance(each, ast.FunctionDef))
            yield from (
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            )
            yield from (target.attr for target, is_self in stored(node) if is_self)


if __name__ == "__main__":
    main(sys.argv[1:])
