"""`python -m benchmarks.gpu`: all of its parts at tiny sizes on a CPU, resumed where they were cut."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import setup, tests
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.tests import outcome_of

ROOT = Path(__file__).parents[1]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_parts_fit_into_nine_minutes() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    first = [part for part in PARTS if "recompute" not in part.name and not part.name.startswith("gpt2-124m, ")]
    assert sum(part.seconds for part in first) < 9 * 60


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so() -> None:
    answer = command()
    assert answer.returncode == 3
    assert "There is no GPU here" in answer.stdout


@pytest.mark.slow
def test_a_dry_run_does_every_part(tmp_path: Path) -> None:
    parts = dry_run(tmp_path)
    assert {name: part["status"] for name, part in parts.items()} == {part.name: "done" for part in PARTS}
    for name in ("gpt2-124m", "llama-1b", "llama-8b, 8 blocks"):
        figures = parts[name]["figures"]["fp32"]
        assert figures["tokens_per_second"].keys() == {"whole", "documents"}
        assert figures["state_bytes"] > 0
    assert parts["tests"]["figures"]["collected"] > 50


def test_it_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    done = {"status": "done", "figures": {}}
    known = {part.name: {"status": "cut"} if part.name == "loss" else done for part in PARTS}
    (tmp_path / "gpu-dry-run.json").write_text(json.dumps({"parts": known}))
    parts = dry_run(tmp_path)
    assert all(part == done for name, part in parts.items() if name != "loss")
    assert parts["loss"]["status"] == "done"
    assert set(parts["loss"]["figures"]["forms"]) == {"chunks", "all logits"}


def dry_run(folder: Path) -> dict[str, Any]:
    answer = command("--dry-run", "--out", str(folder))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return json.loads((folder / "gpu-dry-run.json").read_text())["parts"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tests/a/test_b.py::test_c[x y-cuda] PASSED [ 10%]", ("tests/a/test_b.py::test_c[x y-cuda]", "PASSED")),
        ("[gw3] [ 12%] FAILED tests/a/test_b.py::test_c[x, y] ", ("tests/a/test_b.py::test_c[x, y]", "FAILED")),
        ("tests/a/test_b.py::test_c ", None),
        ("=== 3 passed in 2 s ===", None),
    ],
)
def test_outcomes_are_read(line: str, found: tuple[str, str] | None) -> None:
    assert outcome_of(line) == found


def test_outcomes_of_real_tests_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's tests are skipped where there is none, and pass where there is one; those that passed are left out."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(tests, "PROCESSES", 0)
    file = "tests/parallel/test_on_devices.py"
    known = f"{file}::test_a_step_waits_once"
    found: dict[str, str] = {known: "before"}
    said: list[list[str]] = []
    assert file in tests.files()
    code, tail = tests.run([file], found, said.append)
    assert code == 0, "".join(tail)
    assert found.pop(known) == "before"
    assert set(found.values()) == {"PASSED" if torch.cuda.is_available() else "SKIPPED"}
    assert len(said) == len(found) == 24
    assert f"{file}::test_nccl_adds_on_one_rank" in found


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "NEEDED", ("json", "no_such_module"))
    assert setup.missing(setup.prepare(ROOT)) == ["no_such_module"]
    assert "no_such_module" in setup.remedy(["no_such_module"])
