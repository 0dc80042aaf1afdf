"""`python -m benchmarks.gpu`: what the results keep of parts and tests that fail, hang or lose the device."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import device, setup
from benchmarks.gpu.__main__ import Results, run_parts
from benchmarks.gpu.failures import Recorder
from benchmarks.gpu.output import write_json
from benchmarks.gpu.parts import Part
from benchmarks.gpu.table import table

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "passes": "print('fine')",
    "fails": """
        def inner():
            raise ValueError("injected")
        for number in range(500):
            print("line", number)
        inner()
    """,
    "hangs": """
        import json, subprocess, sys, time
        if len(sys.argv) == 1:
            def asleep():
                time.sleep(600)
            asleep()
        with open(sys.argv[1], "w") as file:
            json.dump({"known": 1}, file)
        print("about to hang", flush=True)
        def parent_waits():
            subprocess.run([sys.executable, "-m", "hangs"])
        parent_waits()
    """,
    "waits": """
        import json, sys, time
        with open(sys.argv[1], "w") as file:
            json.dump({"known": 2}, file)
        results = json.loads(sys.argv[2])["results"]
        while True:
            try:
                part = json.load(open(results))["parts"]["waits"]
            except FileNotFoundError:
                part = {}
            if part.get("status") == "running" and part.get("figures") == {"known": 2}:
                break
            time.sleep(0.05)
    """,
    "leaves": """
        import json, sys
        with open(sys.argv[1], "w") as file:
            json.dump({"left_out": "BENCH_TEXT names no folder"}, file)
        sys.exit(4)
    """,
    "loses": "raise RuntimeError('CUDA error: an illegal memory access was encountered')",
    "runs_out": "raise RuntimeError('CUDA error: out of memory')",
}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run programs as parts: run("fails", "passes") -> exit code and outcomes by part, as the file has them."""
    for name, program in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(program))
    path = tmp_path / "gpu.json"
    environment = setup.prepare(ROOT)
    environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"

    def call(*names: str, seconds: float = 60, answer: str = "") -> tuple[int, dict[str, Any]]:
        parts = [Part(name, "a program", name, seconds, {"results": str(path)}, least=0) for name in names]
        code = run_parts(
            parts, Results(path, {"code_digest": "c0de"}), environment, 600, dry_run=False, probe=lambda *_: answer
        )
        return code, json.loads(path.read_text())["parts"]

    return call


def test_a_failed_part_keeps_its_traceback_and_its_last_lines(run: Callable[..., Any]) -> None:
    code, parts = run("fails", "passes")
    assert code == 1
    assert parts["fails"]["status"] == "failed"
    assert parts["fails"]["output"][-1] == "ValueError: injected"
    assert any("in inner" in line for line in parts["fails"]["output"])
    assert len(parts["fails"]["output"]) == 200
    assert "line 499" in parts["fails"]["output"]
    assert "line 0" not in parts["fails"]["output"]
    assert parts["passes"]["status"] == "done"
    assert parts["passes"]["output"] == ["fine"]


def test_a_part_that_is_cut_keeps_the_stacks_of_its_processes(run: Callable[..., Any]) -> None:
    for seconds in (1, 6, 36):  # on a busy machine a process begins late
        code, parts = run("hangs", seconds=seconds)
        assert code == 75
        part = parts["hangs"]
        assert part["status"] == "cut"
        if len(part.get("stacks", {})) == 2:
            break
    parent, child = sorted(part["stacks"].values(), key=lambda stack: "asleep" in stack)
    assert "in parent_waits" in parent
    assert "in asleep" in child
    assert all("-m hangs" in command for command in part["stacks"])
    assert part["output"] == ["about to hang"]
    assert part["figures"] == {"known": 1}


def test_figures_are_in_the_results_while_a_part_runs(run: Callable[..., Any]) -> None:
    """A call that is killed as a whole leaves them."""
    code, parts = run("waits")
    assert code == 0
    assert parts["waits"]["figures"] == {"known": 2}
    assert parts["waits"]["status"] == "done"
    assert parts["waits"]["code_digest"] == "c0de"


def test_the_next_call_runs_what_is_not_done(run: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    code, first = run("passes", "leaves")
    assert code == 0
    assert first["leaves"]["status"] == "left out"
    code, second = run("passes", "leaves", "fails")
    assert code == 1
    assert second["passes"] == first["passes"]
    output = capfd.readouterr().out
    assert output.count("passes: done before") == 1
    assert output.count("leaves: left out after") == 2
    assert "BENCH_TEXT names no folder" in output.partition("figures\n")[2]


def test_after_a_lost_device_the_remaining_parts_are_skipped(run: Callable[..., Any]) -> None:
    code, parts = run("passes", "loses", "waits", "fails", answer="no device")
    assert code == 1
    assert [parts[name]["status"] for name in ("passes", "loses", "waits", "fails")] == [
        "done",
        "failed",
        "skipped",
        "skipped",
    ]
    assert parts["fails"] == {"status": "skipped", "seconds": 0, "reason": "device lost: no device"}


@pytest.mark.parametrize("name", ["loses", "runs_out", "fails"])
def test_parts_continue_where_a_fresh_process_can_use_the_device(
    run: Callable[..., Any], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failure that does not concern the device is not followed by a probe."""
    answer = "" if name == "loses" else "no device"
    assert run(name, "passes", answer=answer)[1]["passes"]["status"] == "done"
    assert ("a fresh process can use the device" in capfd.readouterr().out) == (name == "loses")


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("RuntimeError: CUDA error: device-side assert triggered", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("NVRM: Xid 79, GPU has fallen off the bus", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx", True),
        ("CUDA error: unspecified launch failure", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", False),
        ("CUDA error: invalid argument", False),
        ("AssertionError: 3 == 4", False),
    ],
)
def test_signs_of_a_lost_device(text: str, is_lost: bool) -> None:
    assert bool(device.LOST.search(text)) == is_lost


@pytest.mark.slow
def test_a_fresh_process_tries_the_device() -> None:
    assert device.problem_of(dict(os.environ), "cpu") == ""
    assert "nowhere" in device.problem_of(dict(os.environ), "nowhere")


TESTS = """
import os, pathlib, time
import pytest

pytestmark = pytest.mark.gpu
HERE = pathlib.Path(__file__).parent

def note(name):
    with open(HERE / "ran", "a") as file:
        file.write(f"{name} {os.getpid()}\\n")

def test_one():
    note("one")

def test_one_more():
    note("one_more")

def test_wrong():
    note("wrong")
    os.write(2, b"Indexing.cu:7: Assertion failed")
    assert 3 == 4

def test_loses():
    note("loses")
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

@pytest.mark.parametrize("number", range(6))
def test_later(number):
    note(f"later-{number}")

def test_hangs():
    time.sleep(600 if (HERE / "hang").exists() else 0)
"""


def run_tests(folder: Path, before: dict[str, Any], **spec: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, figures and output of the part `tests` over the file above."""
    (folder / "test_device.py").write_text(TESTS)
    write_json(folder / "figures.json", before)
    spec |= {"dry_run": True, "files": [str(folder)], "failures": str(folder / "failures.jsonl")}
    words = [sys.executable, "-m", "benchmarks.gpu.tests", str(folder / "figures.json"), json.dumps(spec)]
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.returncode, json.loads((folder / "figures.json").read_text()), answer.stdout + answer.stderr


def test_the_first_text_of_a_failed_test_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that passes and then fails to clean up has failed; a worker that ends has its test reported again."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    paths = {"output": str(tmp_path / "figures.json"), "failures": str(tmp_path / "build" / "failures.jsonl")}
    recorder = Recorder({**paths, "passed": ["before"], "seconds": 100}, pytest.PytestPluginManager())

    def report(name: str, when: Any, outcome: Any, text: str | None = None) -> None:
        place = ("file.py", 1, name)
        recorder.pytest_runtest_logreport(pytest.TestReport(name, place, {}, outcome, text, when))

    report("a", "call", "passed")
    report("a", "teardown", "failed", "cleaning up")
    report("b", "call", "failed", "CUDA error: misaligned address")
    report("b", "???", "failed", "worker 'gw0' crashed")
    report("c", "setup", "skipped", "no GPU")
    figures = json.loads((tmp_path / "figures.json").read_text())
    failed = {"a": "cleaning up", "b": "CUDA error: misaligned address"}
    assert figures == {"passed": ["before"], "failed": failed, "skipped": 1}
    lines = map(json.loads, Path(paths["failures"]).read_text().splitlines())
    assert {line["test"]: line["text"] for line in lines} == failed


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 0])
def test_tracebacks_are_written_and_a_process_without_a_device_or_an_end_is_replaced(
    tmp_path: Path, processes: int
) -> None:
    def name(test: str) -> str:
        return f"test_device.py::{test}"

    before = {"passed": [name("test_one")], "failed": {}, "skipped": 0}
    if processes:
        (tmp_path / "hang").touch()
    code, figures, output = run_tests(tmp_path, before, processes=processes, test_seconds=6)
    assert code == 1, output
    expected = {name(test) for test in ("test_wrong", "test_loses", *["test_hangs"][:processes])}
    assert figures["failed"].keys() == expected, output
    assert "assert 3 == 4" in figures["failed"][name("test_wrong")]
    assert "Assertion failed" in figures["failed"][name("test_wrong")]
    assert "illegal memory access" in figures["failed"][name("test_loses")]
    lines = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert {line["test"]: line["text"] for line in lines} == figures["failed"]
    ran = dict(line.split() for line in (tmp_path / "ran").read_text().splitlines())
    assert "one" not in ran
    assert "one_more" in ran
    if processes:
        assert len(figures["passed"]) == 1 + 1 + 6
        assert "in test_hangs" in figures["failed"][name("test_hangs")]
        assert [test for test, process in ran.items() if process == ran["loses"]][-1] == "loses"
    else:
        assert figures["passed"] == [name("test_one"), name("test_one_more")]
        assert "the device is lost for this process" in output


@pytest.mark.slow
def test_tests_that_are_cut_keep_the_tracebacks_of_failed_tests(tmp_path: Path) -> None:
    (tmp_path / "test_device.py").write_text(TESTS)
    (tmp_path / "hang").touch()
    spec = {"files": [str(tmp_path)], "failures": str(tmp_path / "failures.jsonl")}
    part = Part("tests", "a file of tests", "benchmarks.gpu.tests", 20, spec)
    results = Results(tmp_path / "gpu.json", {})
    assert run_parts([part], results, setup.prepare(ROOT), 100, dry_run=False, probe=lambda *_: "") == 75
    outcome = json.loads((tmp_path / "gpu.json").read_text())["parts"]["tests"]
    assert outcome["status"] == "cut"
    assert any("assert 3 == 4" in text for text in outcome["figures"]["failed"].values())
    assert any("in test_hangs" in stack for stack in outcome["stacks"].values())
    assert len(outcome["figures"]["passed"]) == 2 + 6


def test_the_table_has_the_main_figures_of_every_kind_of_part() -> None:
    commands = {"train gpt": {"ok": True, "code": 75}, "replay gpt": {"ok": True, "code": 3}, "eval": {"ok": False}}
    step = {"tokens_per_second": {"whole": 57_123.0, "documents": 50_000.0}, "peak_bytes": 61.25e9}
    step |= {"mfu_causal": {"whole": 0.481, "documents": 0.42}, "documents_over_whole": 1.1}
    contenders = {"hornbook": {"tokens_per_second": 57e3, "peak_bytes": None}, "litgpt": {"problem": "memory"}}
    forms = {"chunks": {"seconds": [0.02, 0.0151], "above_bytes": 2e9}, "all logits": {"above_bytes": 0}}
    parts = {
        "smoke": {"status": "failed", "seconds": 71.5, "figures": {"commands": commands}},
        "tests": {
            "status": "cut",
            "seconds": 200,
            "figures": {"passed": ["a", "b"], "failed": {"c": ""}, "skipped": 0},
        },
        "step": {"status": "done", "seconds": 60, "figures": step},
        "dry": {"status": "done", "seconds": 60, "figures": {**step, "mfu_causal": None}},
        "peers": {"status": "done", "seconds": 9, "figures": {"contenders": contenders, "left_out": {"nanoGPT": "x"}}},
        "loss": {"status": "failed", "seconds": 9, "figures": {"forms": forms}},
        "five": {"status": "done", "seconds": 310, "figures": {"bits_per_byte": 1.23456, "text": {}}},
        "text": {"status": "left out", "seconds": 3, "figures": {"left_out": "no text"}},
        "late": {"status": "skipped", "seconds": 0, "figures": step, "reason": "device lost: ECC"},
        "bare": {"status": "failed", "seconds": 1},
    }
    lines = {line.split()[0]: line for line in table([*parts, "other"], parts).splitlines()}
    assert "2 of 3 commands passed; failed: eval; replay has other bits" in lines["smoke"]
    assert "2 passed, 1 failed, 0 skipped" in lines["tests"]
    assert "whole 57,123 tokens/s (MFU 48.1%), documents 50,000 tokens/s (MFU 42.0%), peak 61.25 GB" in lines["step"]
    assert "whole 57,123 tokens/s, documents" in lines["dry"]
    assert "hornbook: 57,000 tokens/s, peak not known; litgpt: failed" in lines["peers"]
    assert "chunks: 15.1 ms, 2.00 GB; all logits: not known" in lines["loss"]
    assert "1.2346 bits per byte" in lines["five"]
    assert "no text" in lines["text"]
    assert "device lost: ECC" in lines["late"]
    assert lines["bare"].split() == ["bare", "failed", "1"]
    assert lines["other"].split() == ["other", "not", "begun"]


def test_the_commit_is_told_or_why_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    (tmp_path / "new").touch()
    inner = tmp_path / "inner"
    inner.mkdir()
    assert device.revision(tmp_path) == {"commit": git("rev-parse", "HEAD").strip(), "changed_files": ["?? new"]}
    assert "no .git here" in device.revision(inner)["reason"]
    (tmp_path / ".git" / "HEAD").write_text("damaged")
    assert "git: " in device.revision(tmp_path)["reason"]
    monkeypatch.setenv("PATH", "")
    assert device.revision(tmp_path) == {"commit": None, "reason": "git is not installed here"}
