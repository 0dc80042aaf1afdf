"""A save is killed, or the disk fails, at every single operation of it: nothing is ever lost.

The harness (this file run as a program) counts each system operation that a save makes, and has the n-th fail; where
the process would not survive that, it is a fork of a clean one. Then it looks at what is left.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hornbook.errors import StorageError
from hornbook.files.durable import write_file
from hornbook.files.safetensors import read_header
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_file
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.run.checkpoints.commit import read_pointer
from hornbook.run.checkpoints.find_checkpoint import newest_verified
from hornbook.run.checkpoints.manifest import ValidationLoss
from hornbook.settings.training import CheckpointConfig

OPERATIONS = (
    "open",
    "posix_fallocate",
    "write",
    "pwrite",
    "fsync",
    "rename",
    "replace",
    "mkdir",
    "unlink",
    "rmdir",
    "readv",
    "read",
)
OPERATIONS += ("stat", "scandir", "listdir", "statvfs", "close")
CONFIG = CheckpointConfig(keep=2)
TENSORS = ("model.safetensors", "trainer/optimizer.safetensors")
ENDS = ("saved", "refused", "crashed")
TEXTS = ("config.json", "trainer/state.json")


class Content:
    """A state whose files all hold its step and value, so that a mixture of two saves would show."""

    def __init__(self, step: int = 0, value: int = 0) -> None:
        self.step, self.value, self.tokens = step, value, step * 10

    def create(self, folder: Path) -> None:
        (folder / "trainer").mkdir()
        for name in TENSORS:
            create_file(folder / name, {"x": (2, 2)})
        for name in TEXTS:
            write_file(folder / name, json.dumps([self.step, self.value]).encode(), sync=False)

    def fill(self, folder: Path) -> None:
        columns = torch.tensor([[self.step], [self.value]], dtype=torch.float32)
        for name in TENSORS:
            entry = read_header(folder / name)["x"]
            with Writer() as writer:
                writer.write(entry, TensorSlice(columns, (0, 0)))
                writer.write(entry, TensorSlice(columns, (0, 1)))

    def read(self, folder: Path) -> None:
        found = {tuple(json.loads((folder / name).read_text())) for name in TEXTS}
        for name in TENSORS:
            found |= {tuple(column) for column in load_file(folder / name)["x"].T.tolist()}
        assert len(found) == 1, found
        ((self.step, self.value),) = found


class Fault:
    """Counts operations and strikes at number `when` (1-based; 0 never)."""

    def __init__(self, kind: str, when: int) -> None:
        self.kind, self.when = kind, when
        self.names: list[str] = []

    def arm(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.names.append(f"{name}+" if allocates(name, args) else name)
            if self.when and len(self.names) >= self.when:
                self._strike(name, real, args)
            if name == "fsync":
                return None  # no power is cut here, so nothing need reach the disk
            return real(*args, **kwargs)

        return wrapped

    def _strike(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> None:
        first = len(self.names) == self.when
        if first and self.kind == "torn" and name in ("write", "pwrite"):
            real(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
        if first and self.kind in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        if first and self.kind in ("EIO", "ENOSPC"):
            raise OSError(getattr(errno, self.kind), os.strerror(getattr(errno, self.kind)))
        if self.kind == "full" and allocates(name, args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "gone" and name != "close":
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def allocates(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the operation asks the disk for space."""
    return name in ("posix_fallocate", "write", "pwrite", "mkdir") or (
        name == "open" and len(args) > 1 and bool(args[1] & os.O_CREAT)
    )


def begin(folder: Path, again: bool) -> None:
    """Two checkpoints, and for `again` a third of the step that is saved next: copies of those made once."""
    made = folder.parent / f"made-{again}"
    if not made.exists():
        make(made, again)
    shutil.copytree(made, folder, symlinks=True)


def make(folder: Path, again: bool) -> None:
    """Save those checkpoints."""
    checkpoints = CheckpointStore(folder, CONFIG)
    for step in range(1, 4 if again else 3):
        checkpoints.save(Content(step, 100 + step), score=ValidationLoss(float(step), "some"))


def save_under(fault: Fault, folder: Path) -> str:
    """Save step 3 under the fault; where the process lives on, save it again without."""
    checkpoints = CheckpointStore(folder, CONFIG)
    checkpoints.restore(Content())
    really = dict(vars(os))
    fault.arm()
    try:
        checkpoints.save(Content(3, 203), score=ValidationLoss(0.5, "some"))
        result = "saved"
    except StorageError:
        result = "refused"
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        result = "crashed"
    finally:
        for name in OPERATIONS:
            setattr(os, name, really[name])
    if result == "refused" and fault.kind in ("EIO", "ENOSPC"):
        checkpoints.save(Content(3, 303))
        result = "retried"
    return result


def inject(folder: Path, again: bool, fault: Fault) -> str:
    """Strike, in a fork where the fault kills; says how it ended: saved, refused, retried, killed or crashed."""
    begin(folder, again)
    if fault.kind not in ("kill", "torn"):
        return save_under(fault, folder)
    pid = os.fork()
    if pid == 0:
        said = "crashed"
        try:
            said = save_under(fault, folder)
        finally:
            os._exit(ENDS.index(said))
    status = os.waitpid(pid, 0)[1]
    return "killed" if os.WIFSIGNALED(status) else ENDS[os.WEXITSTATUS(status)]


def judge(folder: Path, again: bool, said: str) -> list[str]:
    """What is wrong with what is left."""
    problems = []
    checkpoints, found = CheckpointStore(folder, CONFIG), Content()
    if said == "crashed":
        problems.append("an error that is no StorageError")
    if newest_verified(folder) is None:
        return [*problems, "nothing verifies"]
    checkpoints.restore(found)
    allowed = {(3, 203)} if said == "saved" else {(3, 103 if again else 0), (3, 203), (3, 303)}
    if not again and said != "saved":
        allowed.add((2, 102))
    if said == "retried":
        allowed = {(3, 303)}
    if (found.step, found.value) not in allowed:
        problems.append(f"restored {found.step, found.value} after {said}")
    if any(note.kind == "checkpoint_damaged" for note in checkpoints.take_notes()):
        problems.append("a damaged checkpoint was visible")
    checkpoints.save(Content(4, 404))
    if (
        newest_verified(folder) != folder / "step-00000004"
        or read_pointer(folder, "latest") != folder / "step-00000004"
    ):
        problems.append("the next save did not work")
    litter = [name for name in os.listdir(folder) if name.startswith(".tmp-") or name.endswith(".old")]
    return problems + [f"litter: {name}" for name in litter]


def exhaust(base: Path, again: bool, stride: int) -> dict[str, Any]:
    """Each fault at every operation, or at one of `stride`; gives the numbers and what went wrong."""
    counter = Fault("none", 0)
    assert inject(base / "count", again, counter) == "saved"
    operations = counter.names
    tried, bad = {}, []
    for offset, kind in enumerate(("kill", "torn", "EIO", "ENOSPC", "full", "gone")):
        for when, name in enumerate(operations, 1):
            if (when + offset) % stride:
                continue
            if kind in ("torn", "ENOSPC", "full") and not name.endswith("+"):
                continue  # the same as kill or EIO there, or as the next operation that asks for space
            folder = base / f"{kind}-{when}"
            said = inject(folder, again, Fault(kind, when))
            tried[said] = tried.get(said, 0) + 1
            bad += [f"{kind} at {when}: {problem}" for problem in judge(folder, again, said)]
            shutil.rmtree(folder)
    return {"operations": len(operations), "tried": tried, "bad": bad}


def trace(folder: Path, call: str, fault: str, when: int) -> tuple[str, bool]:
    """Like `inject`, but the system itself fails: strace strikes the n-th call of one kind. Also: was there one?"""
    begin(folder, again=False)
    log = folder.with_suffix(".log")
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            checkpoints = CheckpointStore(folder, CONFIG)
            checkpoints.restore(Content())
            theirs.send(b"ready")
            theirs.recv(1)
            checkpoints.save(Content(3, 203), score=ValidationLoss(0.5, "some"))
            code = 0
        except StorageError:
            code = 1
        finally:
            os._exit(code)
    theirs.close()
    assert ours.recv(5) == b"ready"
    options = ["-qq", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={when}", "-p", str(pid)]
    with subprocess.Popen(["strace", *options], stderr=subprocess.PIPE, text=True) as tracer:
        while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
            assert tracer.poll() is None, tracer.stderr and tracer.stderr.read()
            time.sleep(0.001)
        ours.send(b"x")
        status = os.waitpid(pid, 0)[1]
    ours.close()
    struck = "INJECTED" in log.read_text() or os.WIFSIGNALED(status)
    if os.WIFSIGNALED(status):
        return "killed", struck
    return ENDS[os.WEXITSTATUS(status)], struck


def exhaust_calls(base: Path, stride: int) -> dict[str, Any]:
    """Each fault at every system call that can change a directory, or at one of `stride` of each kind."""
    calls, tried, bad = {}, {}, []
    for row, call in enumerate(("openat", "fallocate", "write", "pwrite64", "fsync", "rename", "mkdir", "unlinkat")):
        for column, fault in enumerate(("signal=SIGKILL", "error=EIO", "error=EACCES")):
            for when in itertools.count(1 + (row + column) % stride, stride):
                folder = base / f"{call}-{when}"
                said, struck = trace(folder, call, fault, when)
                bad += [f"{call} {when} {fault}: {problem}" for problem in judge(folder, False, said)]
                shutil.rmtree(folder)
                if not struck:
                    calls[call] = max(when - stride, calls.get(call, 0))
                    break
                tried[said] = tried.get(said, 0) + 1
    return {"operations": sum(calls.values()), "calls": calls, "tried": tried, "bad": bad}


def run_harness(mode: str, folder: Path, stride: int) -> dict[str, Any]:
    command = [sys.executable, __file__, str(folder), mode, str(stride)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bad"] == []
    return result


@pytest.mark.parametrize(
    ("mode", "stride"),
    [("new", 3), *(pytest.param(mode, 1, marks=pytest.mark.slow) for mode in ("new", "again"))],
)
def test_every_operation_of_a_save_may_fail(tmp_path: Path, mode: str, stride: int):
    """With a stride each operation is struck by two of the six faults."""
    result = run_harness(mode, tmp_path, stride)
    assert result["operations"] >= 43
    assert result["tried"].keys() >= {"killed", "saved", "refused", "retried"}


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_system_call_of_a_save_may_fail(tmp_path: Path, stride: int):
    """With a stride each call is struck by one of the three faults."""
    probe = ["strace", "-qq", "-o", str(tmp_path / "log"), "-e", "inject=rmdir:error=EIO", "true"]
    if shutil.which("strace") is None or subprocess.run(probe, check=False, capture_output=True).returncode != 0:
        pytest.skip("strace is not there, or may not trace")
    result = run_harness("calls", tmp_path, stride)
    assert min(result["calls"].values()) >= 1
    assert result["calls"]["fsync"] >= 8, "each file, the manifest, both directories and the parent"
    assert result["tried"].keys() >= {"killed", "refused"}


if __name__ == "__main__":
    place, mode, stride = Path("/dev/shm"), sys.argv[2], int(sys.argv[3])
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else sys.argv[1]) as scratch:
        target = Path(scratch)
        found = exhaust_calls(target, stride) if mode == "calls" else exhaust(target, mode == "again", stride)
        print(json.dumps(found))
