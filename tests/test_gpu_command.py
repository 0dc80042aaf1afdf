"""`python -m benchmarks.gpu`: all of its parts at tiny sizes on a CPU, resumed where they were cut."""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.gpu import setup, tests
from benchmarks.gpu.__main__ import SECONDS, run_parts, run_process
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.tests import outcome_of

ROOT = Path(__file__).parents[1]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_parts_fit_into_nine_minutes() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    first = PARTS[: [part.name for part in PARTS].index("llama-1b, recompute")]
    assert {"tests", "gpt2-124m", "llama-1b", "llama-8b, 8 blocks", "loss"} == {part.name for part in first}
    assert sum(part.seconds for part in first) < SECONDS < 9 * 60
    assert all(part.least < part.seconds < SECONDS for part in PARTS)


def test_a_part_that_takes_a_call_is_not_begun_with_less_time(tmp_path: Path) -> None:
    part = next(part for part in PARTS if part.name == "five minutes")
    chosen = Namespace(only=[part.name], seconds=part.least - 1, dry_run=False)
    assert run_parts(chosen, tmp_path / "gpu.json", {}, setup.prepare(ROOT)) == 75
    assert not (tmp_path / "gpu.json").exists()


def test_what_a_part_left_out_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_NANOGPT", raising=False)
    for _ in range(2):
        answer = command("--dry-run", "--out", str(tmp_path), "--only", "five minutes, nanoGPT")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "BENCH_NANOGPT names no folder" in answer.stdout
        found = json.loads((tmp_path / "gpu-dry-run.json").read_text())["parts"]["five minutes, nanoGPT"]
        assert found["status"] == "left out"
        assert "BENCH_NANOGPT" in found["figures"]["left_out"]


def test_a_part_that_is_cut_leaves_no_process(tmp_path: Path) -> None:
    grandchild = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(99)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    words = [sys.executable, "-c", program]
    assert run_process(words, 3.0, dict(os.environ)) == "cut"
    number = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and psutil.pid_exists(number):
        if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.02)
    else:
        assert not psutil.pid_exists(number)


@pytest.mark.slow
def test_hornbook_trains_for_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real commands over a folder of text."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(60):
        (text / f"{number}.txt").write_text(" ".join(f"word{(number * each) % 97}" for each in range(1, 400)))
    monkeypatch.setenv("BENCH_TEXT", str(text))
    answer = command("--dry-run", "--out", str(tmp_path), "--only", "five minutes")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    figures = json.loads((tmp_path / "gpu-dry-run.json").read_text())["parts"]["five minutes"]["figures"]
    assert figures["held_out_tokens"] == figures["text"]["held_out_tokens"]
    assert 0 < figures["bits_per_byte"] < 8
    assert figures["steps"] > 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so() -> None:
    answer = command()
    assert answer.returncode == 3
    assert "There is no GPU here" in answer.stdout


@pytest.mark.slow
def test_a_dry_run_does_every_part(tmp_path: Path) -> None:
    parts = dry_run(tmp_path)
    long = {part.name for part in PARTS if part.name.startswith("five minutes")}
    assert {name: part["status"] for name, part in parts.items() if name not in long} == {
        part.name: "done" for part in PARTS if part.name not in long
    }
    assert {parts[name]["status"] for name in long} <= {"done", "left out"}
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
    assert len(said) == len(found) == 25
    assert f"{file}::test_nccl_adds_on_one_rank" in found


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "NEEDED", ("json", "no_such_module"))
    assert setup.missing(setup.prepare(ROOT)) == ["no_such_module"]
    assert "no_such_module" in setup.remedy(["no_such_module"])
