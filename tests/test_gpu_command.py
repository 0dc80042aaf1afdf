"""`python -m benchmarks.gpu`: all of its parts at tiny sizes on a CPU."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.gpu import __main__ as command_line
from benchmarks.gpu import setup
from benchmarks.gpu.__main__ import SECONDS, Results, run_parts
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.process import run

ROOT = Path(__file__).parents[1]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_parts_fit_into_calls_of_nine_minutes() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert names[:4] == ["smoke", "gpt2-124m", "llama-1b", "tests"]
    assert sum(part.seconds for part in PARTS[:4]) < SECONDS < 9 * 60
    assert all(part.least < part.seconds < SECONDS for part in PARTS)
    assert names[-5] == "gpt2-124m, graphs"
    assert all(name.startswith("five minutes") for name in names[-4:])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (
            "--out there --seconds 440 --only smoke --only gpt2-124m --only llama-1b --only tests",
            ["smoke", "gpt2-124m", "llama-1b", "tests"],
        ),
        ("--seconds 200 --only tests --only 'llama-8b, 8 blocks' --only loss", ["tests", "llama-8b, 8 blocks", "loss"]),
        ("--only loss --only tests --only loss", ["loss", "tests"]),
        ("", [part.name for part in PARTS]),
    ],
)
def test_parts_run_in_the_order_of_the_command_line(
    words: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def run_parts(parts: list[Part], *_: object, **__: object) -> int:
        calls.append([part.name for part in parts])
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry-run", *shlex.split(words)])
    monkeypatch.setattr(command_line, "facts", lambda _: {})
    monkeypatch.setattr(command_line, "run_parts", run_parts)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command_line.main() == 0
    assert calls == [names]


def test_a_part_that_takes_a_call_is_not_begun_with_less_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = next(part for part in PARTS if part.name == "five minutes")
    results = Results(tmp_path / "gpu.json", {})
    assert run_parts([part], results, {}, part.least - 1, dry_run=False) == 75
    assert not (tmp_path / "gpu.json").exists()
    assert "five minutes  not begun" in capsys.readouterr().out


def test_a_part_that_is_cut_leaves_no_process(tmp_path: Path) -> None:
    grandchild = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(99)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    words = [sys.executable, "-c", program]
    ended = run(words, 3.0, dict(os.environ), lambda: None, tmp_path)
    assert ended.code is None
    number = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and psutil.pid_exists(number):
        if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.02)
    else:
        assert not psutil.pid_exists(number)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so() -> None:
    answer = command()
    assert answer.returncode == 3
    assert "There is no GPU here" in answer.stdout


@pytest.mark.slow
def test_a_dry_run_does_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BENCH_TEXT", "BENCH_NANOGPT", "BENCH_NANOCHAT", "BENCH_MODDED_NANOGPT"):
        monkeypatch.delenv(name, raising=False)
    parts = dry_run(tmp_path)
    peers = {part.name for part in PARTS if part.name.startswith("five minutes,")}
    expected = {part.name: "left out" if part.name in peers else "done" for part in PARTS}
    assert {name: part["status"] for name, part in parts.items()} == expected
    for name in ("gpt2-124m", "llama-1b", "llama-8b, 8 blocks", "llama-1b, float8", "gpt2-124m, graphs"):
        figures = parts[name]["figures"]
        assert figures["tokens_per_second"].keys() == {"whole", "documents"}
        assert figures["state_bytes"] > 0
        assert figures["precision"] == ("float8" if "float8" in name else "fp32")
        assert 0 < figures["loss"] < 20
    commands = parts["smoke"]["figures"]["commands"]
    assert {name: entry["code"] for name, entry in commands.items()} == {
        name: 75 if name == "train gpt, stopped" else 0 for name in commands
    }
    assert len(commands) == 9
    assert parts["tests"]["figures"]["skipped"] > 50
    assert set(parts["loss"]["figures"]["forms"]) == {"chunks", "all logits"}
    figures = parts["five minutes"]["figures"]
    assert figures["held_out_tokens"] == figures["text"]["held_out_tokens"]
    assert 0 < figures["bits_per_byte"] < 8
    assert figures["steps"] > 1


def dry_run(folder: Path) -> dict[str, Any]:
    answer = command("--dry-run", "--out", str(folder))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return json.loads((folder / "gpu-dry-run.json").read_text())["parts"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "NEEDED", ("json", "no_such_module"))
    assert setup.missing(setup.prepare(ROOT)) == ["no_such_module"]
    remedy = setup.remedy(["no_such_module", "typing_inspection"])
    assert "Missing here" in remedy
    assert f"-r {setup.WHEELS} -c constraints.txt" in remedy
    assert "manylinux1_x86_64 no_such_module\n" in remedy


def test_the_wheels_have_versions() -> None:
    """The list has names, constraints.txt has versions; whatever can be missing has a distribution there."""
    words = (ROOT / "constraints.txt").read_text().lower().replace("-", "_").split()
    pinned = {word.partition("==")[0] for word in words if "==" in word}
    lines = (ROOT / setup.WHEELS).read_text().replace("-", "_").splitlines()
    names = {line for line in lines if not line.startswith("#")}
    assert names <= pinned
    assert {name.lower() for name in setup.NEEDED} <= pinned
