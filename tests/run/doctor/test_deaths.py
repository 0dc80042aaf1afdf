"""`hornbook doctor RUN`: what ended a run, by what it left behind."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import DivergedError, Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import steps_that_count
from hornbook.run.diagnose.nonfinite import recompute
from hornbook.run.doctor import deaths
from hornbook.run.doctor.deaths import classify, texts
from hornbook.run.doctor.run_report import RunReport, diagnose_run
from hornbook.run.doctor.stacks import Frame, parse_stacks, read_stacks
from hornbook.run.ledger.ledger import At, Ledger
from tests.run.guard.poison import poison
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]

DUMP = """Thread 0x00007f01 [tracker] (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait
  File "/usr/lib/python3.12/queue.py", line 171 in get

Thread 0x00007f02 (most recent call first):
  File "/env/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/env/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/env/hornbook/parallel/world.py", line 164 in all_reduce_sum
  File "/env/hornbook/parallel/engine.py", line 210 in _sum
  File "/env/hornbook/run/loop/training_loop.py", line 191 in compute_gradients
  File "/env/hornbook/run/loop/training_loop.py", line 130 in take_step
"""


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("/home/a/hornbook/src/hornbook/parallel/world.py", "parallel/world.py"),
        ("/env/lib/python3.12/site-packages/hornbook/run/loop/training_loop.py", "run/loop/training_loop.py"),
        ("/home/a/hornbook/.venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", ""),
        ("/home/a/hornbook/train.py", ""),
        ("/home/a/hornbook", ""),
    ],
)
def test_files_of_the_package_are_told_from_others_in_a_folder_of_its_name(file: str, path: str) -> None:
    assert Frame(file, 1, "f").own == path


def test_paths_that_faulthandler_escapes_are_read() -> None:
    """It writes ASCII alone, and the package may lie in a folder with other letters."""
    (frame,) = parse_stacks(
        "Current thread 0x00007f02 (most recent call first):\n"
        r'  File "/\xdcbungen/\u65e5/\U0001f600/hornbook/parallel/world.py", line 164 in all_reduce_sum'
    )
    assert frame.file == "/Übungen/日/😀/hornbook/parallel/world.py"
    assert frame.own == "parallel/world.py"


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    return train_whole()


@pytest.fixture
def finished(tmp_path: Path, whole: Path) -> RunDir:
    """A copy of a run of 12 steps."""
    return RunDir(shutil.copytree(whole, tmp_path / "run"))


def fail(run: RunDir, error: str, text: str, status: str = "failed") -> None:
    """Let the ledger and state.json say that the run ended with an error."""
    with Ledger(run) as ledger:
        ledger.attempt = 1
        ledger.note("fail", At(13, 900), error=error, text=text)
    set_status(run, status)


def set_status(run: RunDir, status: Any, **fields: Any) -> None:
    state: Any = run.read_state()
    assert state is not None
    changed: Any = {**state, "status": status, **fields}
    run.write_state(changed)


def only(report: RunReport) -> Any:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def test_nothing_is_wrong_with_a_finished_run(finished: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    report = diagnose_run(finished)
    assert (report.status, report.findings, report.code) == ("finished", [], Exit.DONE)
    assert main(["doctor", str(finished.path)]) == Exit.DONE
    shown = capsys.readouterr().out
    assert "finished, attempt 1, step 12" in shown
    assert "nothing is wrong" in shown
    assert "not judged: curves, 12 of 192 steps; layers, 0 of 3 measurements (log.statistics_every)" in shown
    assert main(["doctor", str(finished.path), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize(
    ("error", "text", "name", "code"),
    [
        ("DoesNotFitError", "out of memory: DefaultCPUAllocator: can't allocate memory", "out_of_memory", 4),
        ("StorageError", "cannot write x: No space left on device: free some space", "disk_full", 7),
        ("StorageError", "the folder was renamed", "storage", 7),
        ("IntegrityError", "shard prose/00000: block 3 differs", "damaged_data", 3),
        ("RetriesSpentError", "rank 1 was killed by SIGKILL (step 7, clip); restarts", "killed", 1),
        ("RetriesSpentError", "rank 1 was silent for 12.0 s (step 7, data); restarts", "hang", 8),
        ("UsageError", "optim.lr", "usage", 2),
        ("DivergedError", "paused at step 7: the run diverges since step 5 (D2), and all rollbacks", "paused", 5),
        ("HardwareError", "slots that failed a check are left out, and no slot is left", "hardware", 8),
        ("RankLostError", "another rank went away: connection closed by peer", "lost_rank", 75),
        ("RetriesSpentError", "rank 1 was killed by SIGKILL: memory ran out, and the system", "out_of_memory", 4),
        ("ZeroDivisionError", "division by zero", "defect", 1),
    ],
)
def test_an_error_has_its_name_code_and_remedy(finished: RunDir, error: str, text: str, name: str, code: int) -> None:
    fail(finished, error, text)
    report = diagnose_run(finished)
    found = only(report)
    assert (found.name, report.code) == (name, code)
    assert "step 13" in found.evidence
    assert text.partition(";")[0] in found.evidence
    assert found.remedy == texts()[name].remedy


def test_every_name_that_an_error_gets_has_texts() -> None:
    errors = ("DivergedError", "TakenOverError", "InUseError", "RankLostError")
    assert {classify(error, "") for error in errors} <= texts().keys()


@pytest.mark.parametrize(
    ("error", "text"),
    [("DoesNotFitError", "out of memory"), ("RetriesSpentError", "rank 1 was killed by SIGKILL (step 7, clip)")],
)
def test_memory_is_named_by_category(finished: RunDir, error: str, text: str) -> None:
    sizes = {"parameters": 10**9, "gradients": 10**9, "optimizer": 2 * 10**9, "activations": 5 * 10**9, "peak": 10**10}
    finished.memory.write_text(json.dumps({"attempt": 1, "step": 6, "tokens": 1, **sizes}) + "\n")
    fail(finished, error, text)
    shown = "memory at step 6: activations 5 GB, optimizer 2 GB, parameters 1 GB, gradients 1 GB, at most 10 GB"
    assert shown in only(diagnose_run(finished)).evidence


def test_a_killed_process_leaves_a_run_that_says_it_runs(finished: RunDir) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    set_status(finished, "running", pid=gone.pid, started="0", step=0)
    with Ledger(finished) as ledger:
        ledger.attempt = 1
        ledger.note("fault", At(13, 900), do="kill9")
    report = diagnose_run(finished)
    found = only(report)
    assert (found.name, report.step) == ("killed", 13)  # state.json is older than the ledger
    assert "lived at step 13; a fault of the plan (--faults) was the last thing on record" in found.evidence


def test_a_cut_and_a_missing_file_of_a_checkpoint_are_named(finished: RunDir) -> None:
    newest, older = (finished.checkpoints / f"step-{step:08d}" for step in (12, 8))
    os.truncate(newest / "model.safetensors", 100)
    (older / "trainer" / "optimizer.safetensors").unlink()
    report = diagnose_run(finished)
    evidence = [each.evidence for each in report.findings]
    assert "step-00000012: model.safetensors has 100 bytes instead of" in evidence[0]
    assert evidence[1] == "step-00000008: trainer/optimizer.safetensors is missing"
    assert report.code == Exit.INTEGRITY


def test_a_checkpoint_that_a_resume_set_aside_is_told(finished: RunDir, launch_run: Launch) -> None:
    newest = finished.checkpoints / "step-00000012" / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    assert launch_run(finished.path, mode="resume") == Exit.DONE
    report = diagnose_run(finished)
    found = only(report)
    assert (found.name, found.severity, report.code) == ("set_aside", "warn", Exit.DONE)
    assert found.evidence.startswith("damaged-step-00000012: model.safetensors is damaged")


def test_too_little_room_for_the_next_checkpoint_is_told(finished: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    set_status(finished, "stopped")
    assert diagnose_run(finished).findings == []
    monkeypatch.setattr(deaths.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    assert only(diagnose_run(finished)).name == "disk_full"


def test_damaged_records_are_named_and_the_rest_is_told(finished: RunDir) -> None:
    with finished.metrics.open("r+b") as file:
        file.write(b"#" * 10)
    report = diagnose_run(finished)
    assert "the line at byte 0 is not a JSON object" in only(report).evidence
    assert report.code == Exit.INTEGRITY
    with pytest.raises(UsageError, match="holds no run"):
        diagnose_run(RunDir(finished.path / "nowhere"))


def test_whatever_is_damaged_the_rest_is_told(finished: RunDir, tiny_corpus: Path) -> None:
    """Lines that are JSON and no steps, lines that are not, data that is not what its index says, a ledger gone."""
    data = finished.path.parent / "data"
    shutil.copytree(tiny_corpus, data)
    (data / "tokens" / "index.json").write_text("{}")
    with Ledger(finished) as ledger:
        ledger.attempt = 1
        change = {"key": "data.path", "old": "", "new": str(data), "gone": False}
        ledger.note("intervention", At(12, 0), changes=[change])
    finished.memory.write_text("no line of it\n")
    finished.metrics.write_text('{"attempt": 1, "step": 1}\n')
    told = [each.evidence.partition(":")[0] for each in diagnose_run(finished).findings]
    assert told == ["metrics", "memory", "data", "series"]
    finished.events.unlink()
    evidence = [each.evidence for each in diagnose_run(finished).findings]
    assert "it has no records, though the run began: it was cut or deleted" in evidence[0]


def test_the_shards_that_were_waited_for_are_named(finished: RunDir) -> None:
    lines = [json.loads(line) for line in finished.metrics.read_text().splitlines()]
    slow = {**lines[4], "seconds": 1.0, "data_seconds": 0.9}
    many = [{**slow, "step": number} for number in range(1, 81)]
    finished.metrics.write_text("".join(json.dumps(each) + "\n" for each in many))
    evidence = {each.name: each.evidence for each in diagnose_run(finished).findings}["stalled_data"]
    assert re.search(
        r"90 % of the last 80 steps .* the 5 steps that waited longest read \S+/00000 \(\d+ rows\)", evidence
    )


# ---- hangs


def test_stacks_name_collective_and_line(tmp_path: Path) -> None:
    frames = parse_stacks(DUMP)
    assert [each.function for each in frames][:3] == ["all_reduce", "wrapper", "all_reduce_sum"]
    (tmp_path / "rank-0.txt").write_text(DUMP)
    (tmp_path / "rank-1.txt").write_text("")
    (found,) = read_stacks(tmp_path)
    assert str(found) == "rank 0 waits in all_reduce, parallel/world.py:164 (all_reduce_sum)"


def test_a_hang_is_told_by_rank_phase_and_line(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...]
) -> None:
    hang = {"rank": 1, "phase": "clip", "step": 6, "generation": 0, "do": "SIGSTOP"}
    words = [*tiny_settings, "parallel.data=2", "guard.hang_seconds=1.5"]
    run = launcher.start(["train", "--out", str(tmp_path / "run"), *words], tmp_path / "log", faults=[hang])
    assert run.wait() == Exit.DONE, run.text
    (found,) = [each for each in diagnose_run(RunDir(tmp_path / "run")).findings if each.name == "restarts"]
    assert "rank 1 was stopped, and silent for" in found.evidence
    assert "(step 6, clip)" in found.evidence
    assert "rank 0 waits in " in found.evidence
    assert ".py:" in found.evidence


# ---- the first module that is not finite


def test_a_diverged_step_is_computed_again_and_its_module_named(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DivergedError):
        launch_run(tmp_path / "run", "optim.lr=1e30", "optim.clip=0", "guard.max_skips=1")
    report = diagnose_run(RunDir(tmp_path / "run"))
    assert (report.findings[0].name, report.code) == ("diverged", Exit.DIVERGED)
    assert "the first was step 2 (--step 2)" in report.findings[0].evidence
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert main(["doctor", str(tmp_path / "run"), "--step", "2"]) == Exit.DIVERGED
    assert "step 2 again, from initial values: loss nan; first not finite: blocks.0." in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_a_step_behind_what_the_guard_refused_is_made_again_too(tmp_path: Path, launch_run: Launch) -> None:
    """Without the guard the steps between would apply a gradient that is far too large."""
    undo = poison((range(360, 364), 1e12))
    try:
        words = ("train.tokens=12288", "checkpoint.every=90", "optim.clip=0")
        assert launch_run(tmp_path / "run", *words) == Exit.DONE
        steps = steps_that_count(RunDir(tmp_path / "run"))
        assert [each["step"] for each in steps if each["skipped"]] == [91]
        found = recompute(RunDir(tmp_path / "run"), 93)
    finally:
        undo()
    assert (found.checkpoint, found.loss) == ("step-00000090", steps[92]["loss"])


def test_a_step_made_again_has_the_loss_that_was_recorded(finished: RunDir, branch: Any) -> None:
    losses = {each["step"]: each["loss"] for each in branch(finished.path)}
    for step, checkpoint in ((3, ""), (7, "step-00000004"), (12, "step-00000008")):
        found = recompute(finished, step)
        assert (found.finite, found.checkpoint, found.loss) == (True, checkpoint, losses[step])
    with pytest.raises(UsageError, match="it has no step 13"):
        recompute(finished, 13)
