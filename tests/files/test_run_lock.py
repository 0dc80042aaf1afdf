"""The lock of a run directory between machines, whose processes and flocks cannot be seen from each other."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hornbook.errors import Exit, InUseError, StorageError, TakenOverError
from hornbook.files import run_lock
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.run.ledger.ledger import At, Ledger
from tests.processes import wait_until

FOREIGN = {"host": "node1", "pid": 7, "boot": "b", "started": "1", "since": 5.0}
MACHINE = """
import sys, time
from hornbook.errors import HornbookError
from hornbook.files import run_lock
from hornbook.files.run_directory import RunDir
run_lock.RENEW_SECONDS, run_lock.LEASE_SECONDS, run_lock.SETTLE_SECONDS = 0.1, 1.0, 0.4
run_lock._POLL_SECONDS = run_lock._CHECK_SECONDS = 0.05
run_lock._boot_id = lambda: sys.argv[2]
run_lock.fcntl.flock = lambda *_: None
run_lock.LOCAL_DISKS = ()
run = RunDir(sys.argv[1])
try:
    with run_lock.RunLock(run, expires=True):
        while True:
            run.check()
            with open(run.path / "written", "a") as file:
                file.write(sys.argv[2])
            time.sleep(0.01)
except HornbookError as error:
    print(error, file=sys.stderr)
    sys.exit(int(error.exit_code))
"""
"""A machine whose flock is invisible to others."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run directory, whose locks expire in a moment."""
    for name, seconds in {"RENEW": 0.05, "LEASE": 0.6, "SETTLE": 0.15, "_POLL": 0.02, "_CHECK": 0.0}.items():
        monkeypatch.setattr(run_lock, f"{name}_SECONDS", seconds)
    monkeypatch.setattr(run_lock, "LOCAL_DISKS", ())
    return RunDir(tmp_path).create()


def foreign(run: RunDir, beat: int = 0) -> None:
    """In one write over what is there: a lock that is empty for a moment is one that was released."""
    with open(run.lock, "r+b" if run.lock.exists() else "wb", buffering=0) as file:
        file.write(json.dumps(FOREIGN | {"beat": beat}).ljust(200).encode())


@contextlib.contextmanager
def renewed(run: RunDir) -> Iterator[None]:
    """A process on another machine renews its lock."""
    ended = threading.Event()

    def renew() -> None:
        for beat in range(1000):
            foreign(run, beat)
            if ended.wait(0.05):
                return

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        wait_until(lambda: run.lock.exists() and run.lock.read_text() != "")
        yield
    finally:
        ended.set()
        thread.join()


def test_a_silent_lock_of_another_machine_is_taken_over(run: RunDir, capsys: pytest.CaptureFixture[str]):
    foreign(run)
    with RunLock(run, expires=True) as lock:
        assert lock.previous == FOREIGN | {"beat": 0}
        assert json.loads(run.lock.read_text())["pid"] == os.getpid()
    first, second = capsys.readouterr().err.splitlines()
    assert "names process 7 on node1" in first
    assert f"took over {run.path} from process 7 on node1" in second
    assert run.lock.read_text() == ""


def test_a_lock_that_is_renewed_on_another_machine_is_refused(run: RunDir):
    with renewed(run), pytest.raises(InUseError, match=r"process 7 on node1 .* lives on another machine"), RunLock(run):
        pass


def test_a_lock_that_is_released_while_it_is_watched_is_free(run: RunDir, capsys: pytest.CaptureFixture[str]):
    foreign(run)
    timer = threading.Timer(0.2, lambda: run.lock.write_text(""))
    timer.start()
    with RunLock(run) as lock:
        assert lock.previous is None
    timer.join()
    assert "took over" not in capsys.readouterr().err


def test_of_two_that_take_over_at_the_same_time_one_is_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch):
    foreign(run)
    theirs = json.dumps(FOREIGN | {"host": "node2", "beat": 0})
    sleep = time.sleep

    def settle(seconds: float) -> None:
        if seconds == run_lock.SETTLE_SECONDS:
            run.lock.write_text(theirs)
        sleep(seconds)

    monkeypatch.setattr(run_lock.time, "sleep", settle)
    with pytest.raises(InUseError, match=r"process 7 on node2 .* at the same time"), RunLock(run):
        pass
    assert run.lock.read_text() == theirs


def test_an_owner_whose_lock_was_taken_over_writes_nothing_more(run: RunDir):
    with RunLock(run, expires=True), Ledger(run) as ledger:
        ledger.note("start", At())
        run.check()
        before = run.events.read_text()
        foreign(run)
        for write in (run.check, lambda: ledger.note("save", At())):
            with pytest.raises(TakenOverError, match="was taken over by process 7 on node1"):
                write()
    assert run.events.read_text() == before
    assert json.loads(run.lock.read_text())["host"] == "node1"  # what another process holds is not released
    run.check()
    assert TakenOverError.exit_code == Exit.IN_USE
    assert issubclass(TakenOverError, StorageError)  # the errors after which nothing more is written


def test_an_owner_learns_of_a_process_that_took_over_and_has_ended(run: RunDir):
    with RunLock(run, expires=True):
        run.lock.write_text("")
        with pytest.raises(TakenOverError, match="was taken over by a process that has ended since"):
            run.check()
    with RunLock(run, expires=True):
        run.lock.unlink()  # by a person: nobody took anything over
        run.check()


def test_a_network_mount_over_a_local_folder_is_not_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def mounts(*kinds: str) -> list[SimpleNamespace]:
        root = SimpleNamespace(mountpoint="/", fstype="ext4")
        return [root, *(SimpleNamespace(mountpoint=str(tmp_path.resolve()), fstype=kind) for kind in kinds)]

    for kinds, local in {("tmpfs",): True, ("tmpfs", "nfs4"): False, ("nfs4", "xfs"): True, ("9p",): False}.items():
        monkeypatch.setattr(psutil, "disk_partitions", lambda kinds=kinds, **_: mounts(*kinds))
        assert run_lock._is_local(tmp_path / "run.lock") is local, kinds


def test_a_thread_renews_a_lock_and_a_shared_one_is_renewed_by_its_owner(run: RunDir):
    with RunLock(run, expires=True):
        first = run.lock.read_text()
        wait_until(lambda: run.lock.read_text() != first)
        assert len(run.lock.read_text()) == len(first)
    with RunLock(run, expires=True, shared=True) as lock:
        first = run.lock.read_text()
        time.sleep(0.2)
        assert run.lock.read_text() == first
        lock.renew()
        assert run.lock.read_text() != first
    with RunLock(run):
        assert "beat" not in run.lock.read_text()


def test_a_container_on_this_machine_is_no_other_machine(run: RunDir):
    """Its flock is seen here, whatever its name is: a lock without one is of a process that is dead."""
    run.lock.write_text(json.dumps(run_lock.process_identity(os.getpid()) | {"host": "3f1c", "since": 0}))
    with RunLock(run) as lock:
        assert lock.previous is not None


def test_on_a_disk_of_this_machine_alone_a_lock_without_an_flock_is_of_a_dead_process(tmp_path: Path):
    """After a power cut the machine has another boot id; a copy of a run names the machine it came from."""
    run = RunDir(tmp_path).create()
    foreign(run)
    if not run_lock._is_local(run.lock):
        pytest.skip("the folder of the tests is on a file system that other machines may use")
    begun = time.monotonic()
    with RunLock(run, expires=True) as lock:
        assert lock.previous is not None
    assert time.monotonic() - begun < run_lock.LEASE_SECONDS


@pytest.mark.slow
def test_a_process_that_was_frozen_while_another_took_over_ends(tmp_path: Path):
    run = RunDir(tmp_path).create()

    def start(boot: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", MACHINE, str(tmp_path), boot], stderr=subprocess.PIPE, text=True)

    def written() -> str:
        return (tmp_path / "written").read_text() if (tmp_path / "written").exists() else ""

    with start("a") as first:
        wait_until(lambda: "a" in written())
        with start("b") as late:
            assert late.wait(60) == Exit.IN_USE
        first.send_signal(signal.SIGSTOP)
        with start("c") as second:
            wait_until(lambda: "c" in written())
            first.send_signal(signal.SIGCONT)
            assert first.wait(60) == Exit.IN_USE
            assert first.stderr is not None
            assert "was taken over by" in first.stderr.read()
            seen = len(written())
            wait_until(lambda: len(written()) > seen + 10)
            assert written().partition("c")[2].count("a") <= 1  # what it was about to write
            second.kill()
    assert json.loads(run.lock.read_text())["boot"] == "c"
