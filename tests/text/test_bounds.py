"""Bounds that only real processes show: memory, full disks, kill -9."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit

Tree = Callable[[Path], dict[str, bytes]]
Make = Callable[..., list[str]]

HORNBOOK = [sys.executable, "-m", "hornbook.cli.main"]

MEASURE = """
import resource, sys
from pathlib import Path
from hornbook.text.config.text import SourceConfig, TextConfig
from hornbook.text.refinery.pipeline.prepare import prepare
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
config = TextConfig(sources={"s": SourceConfig(paths=[sys.argv[1]])}, max_document_bytes=2**20)
funnel = prepare(config, Path(sys.argv[2]), workers=1)
print(funnel.total().read.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def write_large(folder: Path) -> int:
    """A line of 100 MB, a text of 100 MB without a line end, and 40 MB of rows; gives the number of rows."""
    folder.mkdir()
    with (folder / "a.jsonl").open("w") as file:
        file.write('{"text": "')
        for _ in range(100):
            file.write("x" * 1_000_000)
        file.write('"}\n{"text": "short"}\n')
    with (folder / "b.txt").open("w") as file:
        for number in range(100):
            file.write(f"{number} and " * (1_000_000 // len(f"{number} and ")))
    size = (folder / "b.txt").stat().st_size
    with (folder / "c.jsonl").open("w") as file:
        for number in range(400):
            file.write(json.dumps({"text": f"{number} " * (100_000 // len(f"{number} "))}) + "\n")
    return 2 + -(-size // 2**20) + 400


def test_memory_stays_bounded_whatever_the_input(tmp_path: Path):
    """240 MB of input, documents of at most 1 MiB. Holding one of the large files once, as bytes and as text, would
    alone exceed the bound; parquet's row groups and pools take about 120 MB, for 50 MB of input as for 300."""
    rows = write_large(tmp_path / "raw")
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "raw"), str(tmp_path / "data")]
    found, grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(found) == rows
    assert int(grown) < 200_000  # kB


def write_corpus(folder: Path, make_texts: Make, files: int = 8) -> None:
    folder.mkdir()
    for number in range(files):
        rows = [{"text": text} for text in make_texts(300, seed=number, words=120)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_a_full_disk_is_exit_code_7_and_the_work_goes_on_when_there_is_room(
    tmp_path: Path, make_texts: Make, read_tree: Tree
):
    write_corpus(tmp_path / "raw", make_texts)

    def words(name: str) -> list[str]:
        return ["prepare", str(tmp_path / "raw"), "--out", str(tmp_path / name), "--workers", "2"]

    command = [*HORNBOOK, *words("data")]
    full = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=limit_files)
    assert full.returncode == Exit.STORAGE, full.stderr
    assert "cannot write" in full.stderr
    assert main(words("data")) == Exit.DONE
    assert main(words("whole")) == Exit.DONE
    assert read_tree(tmp_path / "data") == read_tree(tmp_path / "whole")


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """(inode, time of change) of every file and folder below a folder; those that vanish meanwhile are left out."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                state = os.lstat(os.path.join(parent, name))
                found[os.path.join(parent, name)] = (state.st_ino, state.st_ctime_ns)
    return found


def wait_until_it_works(process: "subprocess.Popen[bytes]", data: Path, before: dict[str, tuple[int, int]]) -> None:
    """Return once the process has changed something in its folder, or has ended."""
    deadline = time.monotonic() + 60
    while stamps(data) == before and process.poll() is None:
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.002)


def run_until(command: list[str], data: Path, seconds: float) -> float | None:
    """Start the command and kill -9 it so many seconds into its work; the seconds of work if it ended before."""
    before = stamps(data)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_until_it_works(process, data, before)
        begun = time.monotonic()
        process.wait(seconds)
        assert process.returncode == 0
        return time.monotonic() - begun
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()


def kill_while_working(command: list[str], data: Path, seconds: float, kills: int, draw: random.Random) -> None:
    """Kill at random moments of the work, as often as asked; a command that ends before starts afresh."""
    fresh = data.with_name("fresh")
    if data.exists():
        shutil.copytree(data, fresh)
    killed = 0
    for _ in range(20 * kills):
        if run_until(command, data, draw.uniform(0, seconds)) is None:
            killed += 1
        else:
            shutil.rmtree(data)
            if fresh.exists():
                shutil.copytree(fresh, data)
        if killed == kills:
            break
    shutil.rmtree(fresh, ignore_errors=True)
    assert killed == kills


def kill_and_compare(tmp_path: Path, make_texts: Make, read_tree: Tree, workers: int, kills: int) -> None:
    """Kill both verbs again and again while they work, then let them end: the bytes of a run that nobody killed."""
    write_corpus(tmp_path / "raw", make_texts)
    verbs = {}
    for name in ("whole", "data"):
        data = tmp_path / name
        verbs[name] = (
            [*HORNBOOK, "prepare", str(tmp_path / "raw"), "--out", str(data), "--workers", str(workers)],
            [*HORNBOOK, "tokenize", str(data), "--vocab", "400", "--workers", str(workers)],
        )
    draw = random.Random(workers)
    for whole, command in zip(verbs["whole"], verbs["data"], strict=True):
        seconds = run_until(whole, tmp_path / "whole", 60)
        assert seconds is not None
        kill_while_working(command, tmp_path / "data", seconds, kills, draw)
        subprocess.run(command, check=True, capture_output=True)
    assert read_tree(tmp_path / "data") == read_tree(tmp_path / "whole")


def test_killed_at_random_it_goes_on_to_the_same_bytes(tmp_path: Path, make_texts: Make, read_tree: Tree):
    kill_and_compare(tmp_path, make_texts, read_tree, workers=2, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_fifty_times_it_goes_on_to_the_same_bytes(
    tmp_path: Path, make_texts: Make, read_tree: Tree, workers: int
):
    kill_and_compare(tmp_path, make_texts, read_tree, workers, kills=9)
    assert not any(name.startswith(".tmp-") for _, _, names in os.walk(tmp_path / "data") for name in names)
