"""The process of a part: its output as it comes, its last lines, and the stacks of its processes when it is cut."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LINES, LINE_CHARACTERS, STACK_CHARACTERS = 200, 2000, 20_000
"""Last lines of output that are kept, characters of each line, characters of the stacks of one process."""
TICK = 1.0
"""Seconds between two calls of `tick`."""


@dataclass(frozen=True)
class Ended:
    """The end of a process."""

    code: int | None
    """Exit code; None if it reached its time limit."""
    lines: list[str]
    """The last lines of stdout and stderr."""
    stacks: dict[str, str]
    """Stacks of all Python processes of the group at the time limit, by command line."""


def run(words: list[str], seconds: float, environment: dict[str, str], tick: Callable[[], None], cwd: Path) -> Ended:
    """Run a command in a group of processes of its own, and kill the whole group at the end.

    At the time limit the Python processes of the group first write their stacks (`site/sitecustomize.py`).
    """
    with tempfile.TemporaryDirectory() as folder:
        variables, pipe = {**environment, "GPU_STACKS": folder}, subprocess.PIPE
        process = subprocess.Popen(
            words, env=variables, cwd=cwd, start_new_session=True, stdout=pipe, stderr=subprocess.STDOUT
        )
        lines: deque[str] = deque(maxlen=LINES)
        assert process.stdout is not None
        reader = threading.Thread(target=keep_lines, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            code = wait(process, seconds, tick)
            stacks = ask_for_stacks(process.pid, Path(folder)) if code is None else {}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(5)  # a process that left the group may hold the pipe open
        return Ended(code, list(lines), stacks)


def keep_lines(stream: IO[bytes], lines: deque[str], prefix: str = "") -> None:
    """Print and keep lines of a stream until it ends, and close it."""
    with stream:
        for line in stream:
            text = line.decode(errors="replace").rstrip()[:LINE_CHARACTERS]
            print(prefix + text, flush=True)
            lines.append(text)


def wait(process: subprocess.Popen[bytes], seconds: float, tick: Callable[[], None]) -> int | None:
    """The exit code, or None after so many seconds; `tick` is called every second."""
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(TICK, remaining))
        tick()
    return None


def ask_for_stacks(group: int, folder: Path) -> dict[str, str]:
    """Stacks of the Python processes of a group, by command line; a process that wrote none is left out."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGURG)
    time.sleep(1)
    stacks: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        command, _, stack = file.read_text(errors="replace").partition("\n")
        if stack:
            stacks[f"{file.name}: {command}"] = stack[:STACK_CHARACTERS]
    return stacks
