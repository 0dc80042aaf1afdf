"""Kernels on disk are used again, and only while all that they were made of is as it was."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CALLEE = """
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hornbook.kernels.compiled import compiled, inlined

FACTOR = 10
TABLE = np.array([1, 2])


def _one(context, value):
    def generate(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(64), 1)

    return types.int64(value), generate


one = intrinsic(_one)


@inlined
def inner(value):
    return value + 1


@compiled
def above(value):
    return below(value)  # stands further down


@compiled
def below(value):
    return inner(value) + one(value)
"""
CALLER = """
from callee import FACTOR, TABLE, above
from hornbook.kernels.compiled import compiled


@compiled
def kernel(value):
    return above(value) * FACTOR + TABLE[0]


print(kernel(1), sum(kernel.stats.cache_hits.values()))
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the kernel was compiled. Read only."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "callee.py").write_text(CALLEE)
    (folder / "caller.py").write_text(CALLER)
    assert run(folder) == (31, 0)
    return folder


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    shutil.copytree(first, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(folder: Path, **environment: str) -> tuple[int, int]:
    """(what the kernel gives, how often it came from disk), in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "caller.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"NUMBA_CACHE_DIR": str(folder / "first")} | environment,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    value, hits = ran.stdout.split()
    return int(value), int(hits)


def test_a_kernel_comes_from_disk(folder: Path):
    assert run(folder) == (31, 1)
    (folder / "caller.py").touch()
    assert run(folder) == (31, 1)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("value + 1", "value + 2", 41),
        ("FACTOR = 10", "FACTOR = 100", 301),
        ("[1, 2]", "[5, 2]", 35),
        ("ir.IntType(64), 1", "ir.IntType(64), 2", 41),
        ("inner(value) + one", "inner(value) * 2 + one", 51),
    ],
    ids=["inlined", "constant", "array", "intrinsic", "further down"],
)
def test_what_it_is_made_of_has_changed(folder: Path, old: str, new: str, value: int):
    assert old in CALLEE
    (folder / "callee.py").write_text(CALLEE.replace(old, new))
    assert run(folder) == (value, 0)
    assert run(folder) == (value, 1)


def test_options_are_part_of_it(folder: Path):
    (folder / "caller.py").write_text(
        CALLER.replace("import compiled\n", "import compiled as _\nfrom hornbook.kernels.cache import kept_function\n")
        .replace("@compiled\ndef", "def")
        .replace(
            "\n\nprint",
            "\n\nkernel = kept_function(kernel, nogil=True, fastmath={'nsz', 'arcp'})\nprint",
        )
    )
    for hits in (0, 1, 1):  # sets have no order that lasts
        assert run(folder, PYTHONHASHSEED=str(hits + 7)) == (31, hits)


def test_a_folder_of_ones_own(folder: Path, tmp_path: Path):
    kept = tmp_path / "kept"
    assert run(folder, NUMBA_CACHE_DIR=str(kept)) == (31, 0)
    assert run(folder, NUMBA_CACHE_DIR=str(kept)) == (31, 1)
    assert any(kept.rglob("__main__.kernel-*"))
