"""The import directions of docs/architecture.md, over every import statement, lazy ones included."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
BASE = ("settings", "files")
ROOMS = {"kernels": 1, "text": 2, "model": 3, "optim": 3, "data": 3, "parallel": 4, "plan": 5, "evals": 5, "run": 6}
ROOMS |= {"serve": 7, "search": 7, "studio": 8, "cli": 9}
PARTS_OF_RUN = ("ledger", "machine", "guard", "layers", "checkpoints", "job", "doctor", "observe", "loop", "launch")
PARTS_OF_RUN += ("diagnose",)
"""Lowest first: each imports only those before it."""
HEAVY = ("torch", "numpy", "pyarrow", "numba", "tokenizers")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def room_of(module: str) -> str:
    """Name of the room. Level 0 is one room: what a recipe is and the files of a run, with each room's `config`."""
    parts = module.split(".")
    if module == "hornbook.__main__":
        return "cli"
    return "base" if len(parts) < 3 or parts[1] in BASE or is_config(module) else parts[1]


def is_config(module: str) -> bool:
    return module.split(".")[2:3] == ["config"]


def level_of(module: str) -> int:
    room = room_of(module)
    return 0 if room == "base" else ROOMS[room]


@functools.cache
def imported(path: Path) -> list[tuple[int, str]]:
    """(line, module of ours) of every import statement, wherever it stands."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names if alias.name.startswith("hornbook"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports name the whole module, not a relative one"
            if node.module is not None and node.module.split(".")[0] == "hornbook":
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.append((node.lineno, whole if whole in MODULES else node.module))
    return found


def edges() -> Iterator[tuple[str, str, str]]:
    """(importer, target, place) of every import statement."""
    for name, path in MODULES.items():
        for line, target in imported(path):
            yield name, target, f"{path.relative_to(SOURCE)}:{line}"


def allowed(importer: str, target: str) -> bool:
    """Lower levels, or the same room."""
    low, high = level_of(target), level_of(importer)
    return low < high or (low == high and (low == 0 or room_of(importer) == room_of(target) or low == ROOMS["cli"]))


def test_every_room_is_known() -> None:
    folders = {path.name for path in (SOURCE / "hornbook").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"recipes", *BASE} <= set(ROOMS)


def test_imports_go_only_downwards() -> None:
    wrong = [
        f"{place} {importer} imports {target}" for importer, target, place in edges() if not allowed(importer, target)
    ]
    assert wrong == []


def part_of_run(module: str) -> int | None:
    """Place in the order of `PARTS_OF_RUN`; None outside of `run`."""
    parts = module.split(".")
    return PARTS_OF_RUN.index(parts[2]) if parts[1:2] == ["run"] and len(parts) > 2 else None


def test_the_parts_of_run_import_only_those_before_them() -> None:
    places = [(place, part_of_run(importer), part_of_run(target)) for importer, target, place in edges()]
    wrong = [place for place, high, low in places if high is not None and low is not None and low > high]
    assert wrong == []


def test_imported_modules_exist() -> None:
    assert [f"{place} {target}" for _, target, place in edges() if target not in MODULES] == []


@pytest.mark.parametrize(
    ("importer", "target", "good"),
    [
        ("hornbook.run.loop.training_loop", "hornbook.data.loader.loader", True),
        ("hornbook.data.loader.loader", "hornbook.run.loop.training_loop", False),
        ("hornbook.data.loader.loader", "hornbook.model.build_model", False),
        ("hornbook.data.loader.loader", "hornbook.data.order.sampler", True),
        ("hornbook.settings.resolve", "hornbook.model.config.model_config", True),
        ("hornbook.model.config.model_config", "hornbook.model.build_model", False),
        ("hornbook.settings.resolve", "hornbook.cli.settings.config", False),
        ("hornbook.cli.train.train", "hornbook.run.launch.launch", True),
    ],
)
def test_the_rule_itself(importer: str, target: str, good: bool) -> None:
    assert allowed(importer, target) is good


def test_no_module_imports_itself_in_a_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for importer, target, _ in edges():
        graph[importer].add(target)
    finished: set[str] = set()

    def visit(name: str, way: list[str]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in finished:
            for target in sorted(graph.get(name, ())):
                visit(target, [*way, name])
            finished.add(name)

    for name in graph:
        visit(name, [])


def test_package_files_are_empty() -> None:
    assert [str(path) for path in SOURCE.rglob("__init__.py") if path.read_text(encoding="utf-8").strip()] == []


def loaded_after(code: str) -> set[str]:
    """Which heavy packages are loaded after `code` ran in a fresh interpreter."""
    report = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.__stderr__)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.split())


def test_help_loads_no_engine() -> None:
    assert loaded_after("from hornbook.cli.main import main; assert main(['--help']) == 0") == set()


@pytest.mark.parametrize("words", [["config", "show", "tiny"], ["recipes", "ls"], ["config", "schema"]])
def test_configuration_loads_no_engine(words: list[str]) -> None:
    assert loaded_after(f"from hornbook.cli.main import main; assert main({words!r}) == 0") == set()


def test_level_0_loads_no_engine() -> None:
    names = [name for name in MODULES if level_of(name) == 0]
    assert "hornbook.settings.resolve" in names
    assert loaded_after("\n".join(f"import {name}" for name in names)) == set()


def test_text_and_plan_and_the_doctor_load_no_torch() -> None:
    names = {name for name in MODULES if level_of(name) <= ROOMS["text"] or room_of(name) == "plan"}
    names |= {name for name in MODULES if name.startswith("hornbook.run.doctor.")}
    names -= {"hornbook.run.doctor.exposure"}  # it makes batches again
    names -= {"hornbook.kernels.torch_versions"}  # what the engine needs of torch's private names
    assert "torch" not in loaded_after("\n".join(f"import {name}" for name in names))


def test_verbs_load_no_engine() -> None:
    names = [name for name in MODULES if room_of(name) == "cli" and name != "hornbook.__main__"]
    assert loaded_after("\n".join(f"import importlib; importlib.import_module({name!r})" for name in names)) == set()
