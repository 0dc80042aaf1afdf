"""The run directory: files survive torn writes, full disks and two owners."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.errors import Exit, IntegrityError, InUseError, StorageError
from hornbook.files.journal import Appender, chain, current_branch, read_records, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock, is_alive, process_identity

HOLD = """
import sys, time
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
with RunLock(RunDir(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def records(path: Path) -> list[dict[str, object]]:
    return list(read_records(path))


def test_appended_records_come_back_bit_for_bit(tmp_path: Path):
    written = [{"attempt": 1, "step": i, "tokens": i * 7, "loss": 0.1 + i / 3} for i in range(50)]
    with Appender(tmp_path / "m.jsonl") as appender:
        for record in written:
            appender.append(record)
    assert records(tmp_path / "m.jsonl") == written


def test_values_that_are_not_finite_become_null(tmp_path: Path):
    with Appender(tmp_path / "m.jsonl") as appender:
        appender.append({"loss": float("nan"), "nested": [{"norm": float("-inf")}]})
    assert records(tmp_path / "m.jsonl") == [{"loss": None, "nested": [{"norm": None}]}]


def test_every_torn_tail_is_cut_and_the_rest_kept(tmp_path: Path):
    whole = b'{"step": 1}\n{"step": 2}\n'
    torn = b'{"step": 3, "text": "half a li'
    for cut in range(1, len(torn)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole + torn[:cut])
        with Appender(path) as appender:
            assert appender.torn == cut
            appender.append({"step": 3})
        assert records(path) == [{"step": 1}, {"step": 2}, {"step": 3}]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\0" * 10 + b"\n", b'{"a": 1', b"[1]\n", b"\n\n", b"x" * 200_000])
def test_tails_that_a_power_cut_leaves_are_cut(tmp_path: Path, tail: bytes):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + tail)
    with Appender(path) as appender:
        assert appender.torn == len(tail)
    assert path.read_bytes() == b'{"step": 1}\n'


def test_a_file_of_nothing_but_a_torn_line_becomes_empty(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"ste')
    with Appender(path) as appender:
        assert appender.torn == 5
        appender.append({"step": 1})
    assert records(path) == [{"step": 1}]


def test_a_reader_waits_for_a_whole_line(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert records(path) == [{"step": 1}, {"step": 2}]
    with path.open("ab") as file:
        file.write(b'ep": 3}\n')
    assert records(path) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_damage_inside_a_file_is_named_by_its_byte(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\0p": 2\n{"step": 3}\n')
    with pytest.raises(IntegrityError, match="byte 12"):
        records(path)


def test_no_file_has_no_records(tmp_path: Path):
    assert records(tmp_path / "absent.jsonl") == []


def test_sync_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for seconds, expected in ((None, 0), (0, 3), (3600, 0)):
        appender = Appender(tmp_path / f"{seconds}.jsonl", sync_seconds=seconds)
        assert len(synced) == 1  # the new name in its folder
        synced.clear()
        for step in range(3):
            appender.append({"step": step})
        assert len(synced) == expected
        appender.close()
        appender.close()
        assert len(synced) == (expected or 1)
        synced.clear()


def test_a_failed_append_leaves_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "m.jsonl"
    write = os.write

    def full(file: int, data: memoryview) -> int:
        if len(data) > 8:
            return write(file, data[:8])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Appender(path) as appender:
        appender.append({"step": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StorageError, match=r"m\.jsonl.*free some space"):
                appender.append({"step": 2, "more": "text"})
        appender.append({"step": 3})
    assert records(path) == [{"step": 1}, {"step": 3}]


def test_branch_is_the_last_attempt_of_each_step():
    steps = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5), (3, 2)]
    branch = current_branch([{"attempt": a, "step": s} for a, s in steps])
    assert [(r["attempt"], r["step"]) for r in branch] == [(1, 1), (3, 2)]
    branch = current_branch([{"attempt": a, "step": s} for a, s in steps[:-1]])
    assert [(r["attempt"], r["step"]) for r in branch] == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]


def write_ledger(path: Path, count: int = 5) -> list[str]:
    with Appender(path, chained=True) as ledger:
        for i in range(count):
            ledger.append({"kind": "save", "step": i, "loss": 0.1 * i, "where": "a\u00e9"})
    return path.read_text().splitlines(keepends=True)


def test_ledger_chain_verifies_across_reopening_and_torn_tails(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    write_ledger(path)
    with path.open("ab") as file:
        file.write(b'{"kind": "to')
    write_ledger(path)
    assert verify_chain(path) == 10


def test_ledger_chain_finds_every_altered_lost_added_or_swapped_record(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    lines = write_ledger(path)
    forged = json.dumps(chain({"kind": "save", "step": 9}, json.loads(lines[1])["sha"])) + "\n"
    damages = [lines[:i] + lines[i + 1 :] for i in range(len(lines) - 1)]
    damages += [
        [line.replace('"kind": "save"', '"kind": "skip"') if i == j else line for j, line in enumerate(lines)]
        for i in range(5)
    ]
    damages += [[*lines[:2], forged, *lines[2:]], [lines[1], lines[0], *lines[2:]]]
    for damaged in damages:
        path.write_text("".join(damaged))
        with pytest.raises(IntegrityError):
            verify_chain(path)


def test_chain_does_not_depend_on_the_order_of_keys():
    assert chain({"a": 1, "b": 2.5}, "x")["sha"] == chain({"b": 2.5, "a": 1}, "x")["sha"]


def test_run_directory_is_made_probed_and_cleaned(tmp_path: Path):
    run = RunDir(tmp_path / "runs" / "a")
    assert not run.exists()
    run.create().create()
    assert run.exists()
    assert run.name == "a"
    assert sorted(os.listdir(run.path)) == ["checkpoints", "control", "evals", "samples"]
    for name in (".tmp-state.json-999", "evals/.tmp-step-1.json-999", "samples/.tmp-step-1.json-999"):
        (run.path / name).write_text("{")
    assert sorted(run.clean()) == [".tmp-state.json-999", ".tmp-step-1.json-999", ".tmp-step-1.json-999"]
    assert not list(run.path.rglob(".tmp-*"))
    assert run.read_state() is None
    run.write_state({"attempt": 1, "step": 2, "tokens": 3, "status": "running", "heartbeat": 4.0})
    assert run.read_state() == {"attempt": 1, "step": 2, "tokens": 3, "status": "running", "heartbeat": 4.0}
    run.state.write_text("[")
    assert run.read_state() is None


def test_a_place_that_cannot_be_written_is_refused_by_its_name(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/run"):
        RunDir(tmp_path / "file" / "run").create()
    with pytest.raises(StorageError, match="events"):
        Appender(tmp_path / "file" / "events.jsonl")


def test_second_owner_is_refused_at_once_and_told_who(tmp_path: Path):
    run = RunDir(tmp_path).create()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(InUseError, match=f"process {owner.pid} on ") as caught, RunLock(run):
            pass
        assert owner.poll() is None
        assert caught.value.exit_code == Exit.IN_USE
        owner.send_signal(signal.SIGKILL)
    with RunLock(run) as lock:
        assert lock.previous is not None
        assert lock.previous["pid"] == owner.pid
    with RunLock(run) as lock:
        assert lock.previous is None


def test_lock_inside_one_process_and_after_release(tmp_path: Path):
    run = RunDir(tmp_path).create()
    with RunLock(run):
        with pytest.raises(InUseError, match=f"process {os.getpid()} "), RunLock(run):
            pass
        assert json.loads(run.lock.read_text())["pid"] == os.getpid()
    assert run.lock.read_text() == ""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path):
    script = """
import os, sys, time
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
with RunLock(RunDir(sys.argv[1])):
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # the child has run what follows a fork
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.kill()
        owner.wait()
        try:
            with RunLock(RunDir(tmp_path)):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_lock_of_another_host_is_refused_without_proof_of_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hornbook.files.run_lock.LOCAL_DISKS", ())
    run = RunDir(tmp_path).create()
    run.lock.write_text(json.dumps({"host": "elsewhere", "pid": 7, "boot": "b", "started": "1", "since": 0}))
    with pytest.raises(InUseError, match=r"process 7 on elsewhere.*delete"), RunLock(run):
        pass
    run.lock.unlink()
    with RunLock(run):
        pass


def test_process_identity_survives_reuse_of_a_pid():
    mine = process_identity(os.getpid())
    assert is_alive(mine) is True
    assert is_alive(mine | {"started": "1"}) is False
    assert is_alive(mine | {"boot": "another"}) is False
    assert is_alive(mine | {"host": "elsewhere"}) is None
    assert is_alive({"status": "running"}) is None


def test_importing_it_brings_neither_torch_nor_numpy():
    heavy = "print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    code = f"import sys, hornbook.files.run_directory; {heavy}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_process_is_known_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on macOS."""
    monkeypatch.setattr("hornbook.files.run_lock._PROC", tmp_path)
    mine = process_identity(os.getpid())
    assert is_alive(mine) is True
    assert is_alive(mine | {"started": "1"}) is False
