"""kill -9 of jobs that share the phases of prepare: started again, they write the bytes of one process."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Tree = Callable[[Path], dict[str, bytes]]
Write = Callable[[Path, list[Any]], Path]
Make = Callable[..., list[str]]

SHARES, KILLS = 2, 3
NEVER = 10**9
STEPS = 'text.steps=[{kind="normalize"}, {kind="exact_dedup"}, {kind="near_dedup"}, {kind="line_dedup", min_bytes=8}]'


def start(raw: Path, data: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hornbook", "prepare", str(raw), "--out", str(data), "--workers", "1", *words]
    settings = [STEPS, "text.shard_bytes=2000"]
    return subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def files_in(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def killed_at(files: int, data: Path, processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Kill all as soon as the folder holds so many files; whether one was still at work."""
    while files_in(data) < files and any(process.poll() is None for process in processes):
        time.sleep(0.001)
    at_work = [process.poll() is None for process in processes]
    for process in processes:
        process.kill()
        said = process.communicate()[1].decode()
        assert process.returncode in (0, -signal.SIGKILL), said
    return any(at_work)


@pytest.mark.slow
def test_killed_shares_started_again_write_the_same_bytes(
    tmp_path: Path, write_rows: Write, make_texts: Make, read_tree: Tree
):
    raw, data, draw = tmp_path / "raw", tmp_path / "data", random.Random(3)
    for number in range(12):
        write_rows(raw / f"{number}.jsonl", [{"text": text} for text in make_texts(40, seed=number)])
    assert not killed_at(NEVER, tmp_path / "whole", [start(raw, tmp_path / "whole")])
    for phase, count in (("measure", SHARES), ("decide", 1), ("write", SHARES)):
        jobs = [("--phase", phase, "--shard", f"{share + 1}/{count}") for share in range(count)]
        kills = 0
        while killed_at(
            files_in(data) + draw.randint(1, 12) if kills < KILLS else NEVER,
            data,
            [start(raw, data, *words) for words in jobs],
        ):
            kills += 1
        assert kills, f"phase {phase} was over before it was killed"
    assert not killed_at(NEVER, data, [start(raw, data)])
    assert len(list((data / "signals").iterdir())) >= 12
    assert read_tree(data) == read_tree(tmp_path / "whole")
