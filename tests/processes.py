"""Processes that tests start: a server that answers line by line, and what is asked of processes everywhere."""

import contextlib
import ctypes
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 240.0
"""For a server to import what it needs, and to compile kernels that nobody has compiled yet."""
CLOSE_SECONDS = 20.0
"""For a server to end once its input has."""
PATIENCE_SECONDS = 60.0
"""For what happens at once, unless the machine stands still for a while."""
_PR_SET_PDEATHSIG = 1
fsync = os.fsync
"""The real one (`sync_nothing`)."""


SESSION = "HORNBOOK_TEST_SESSION"
"""Environment variable: whatever a test starts, and what that starts, is known by it."""
_WATCHER = """
import os, select, signal, sys, time
os.setsid()
parent, mark = int(sys.argv[1]), sys.argv[2].encode()
try:
    watched = os.pidfd_open(parent)
except ProcessLookupError:
    watched = None
if watched is not None:
    select.select([watched], [], [])
for _ in range(50):
    left = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(bytes(1)):
                    os.kill(int(name), signal.SIGKILL)
                    left.append(name)
        except OSError:
            pass
    if not left:
        break
    time.sleep(0.1)
"""


def kill_what_is_left() -> None:
    """However this process ends, kill what it started, with all that this started; called once a session.

    A killed pytest runs no clean-up, and a training process would go on for as long as its run lasts.
    """
    mark = f"{SESSION}={os.getpid()}-{os.urandom(8).hex()}"
    words = [sys.executable, "-c", _WATCHER, str(os.getpid()), mark]
    os.posix_spawn(
        sys.executable, words, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    )
    os.environ.update([mark.split("=", 1)])


class ServerError(AssertionError):
    """A server ended, or said nothing for too long."""


class Server:
    """A module of the tests as a process of its own, which answers each line of JSON with one; first it says hello.

    It is no child of a process that has threads or has computed, so it may fork. It dies with this process.
    """

    def __init__(self, module: str, environ: Mapping[str, str] | None = None) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | (environ or {}),
            start_new_session=True,  # Ctrl-C is pytest's; the server ends when pytest closes the pipe or dies
        )
        try:
            self._read(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        """The answer to a request; ServerError if there is none for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read(seconds)

    def _read(self, seconds: float) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.close()
            raise ServerError(f"{self._name} said nothing for {seconds:.0f} s or ended")
        return json.loads(line)

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def sync_nothing() -> None:
    """Let `os.fsync` only check that its descriptor is open: a tiny run calls it 70 times and waits each time.

    Tests of power cuts use the real one (`tests/run/checkpoints/test_checkpoint_power.py`). Tests of failing system
    calls and of the order of syncs and renames replace or trace the calls themselves.
    """
    os.fsync = os.fstat


def answer(value: Any) -> None:
    """For a server: write one line to whoever asked."""
    print(json.dumps(value), flush=True)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; leave if it has died already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take back `die_with`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def state_of(pid: int) -> str:
    """The letter of a process's state (`man 5 proc`): R, S, D, T, Z, ...; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def free_port() -> int:
    """A port of this machine that nobody listens at, and that the system does not give away by itself."""
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_server(("localhost", random.randrange(15_000, 30_000))) as taken,
        ):
            return taken.getsockname()[1]


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
    """Return when the condition holds; fails if it does not for so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in {seconds:g} s"
        time.sleep(0.01)
