"""Tasks on worker processes: order, errors, and what happens when a process dies."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hornbook.errors import UsageError
from hornbook.text.pool import WorkerDiedError, choose_workers, run_tasks


def square(number: int) -> int:
    time.sleep(0.02 * (number % 3))
    return number * number


def fail_at_three(number: int) -> int:
    if number == 3:
        raise UsageError("three")
    if number > 3:
        time.sleep(30)
    return number


def die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(workers: int):
    assert list(run_tasks(square, range(12), workers)) == [number * number for number in range(12)]


def test_no_tasks_no_results():
    assert list(run_tasks(square, [], 2)) == []


def test_the_first_error_in_order_is_raised_and_nobody_waits_for_the_rest():
    started = time.monotonic()
    results = run_tasks(fail_at_three, range(8), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UsageError, match="three"):
        next(results)
    assert time.monotonic() - started < 25


def test_a_killed_worker_is_an_error_that_says_what_to_do():
    with pytest.raises(WorkerDiedError, match="run the command again"):
        list(run_tasks(die, range(6), 2))


def test_the_number_of_workers():
    assert choose_workers(3, 10) == 3
    assert choose_workers(3, 2) == 2
    assert choose_workers(0, 1) == 1
    assert 1 <= choose_workers(0, 1000) <= (os.cpu_count() or 1)


def test_cores_are_counted_where_no_affinity_can_be_asked(monkeypatch: pytest.MonkeyPatch):
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert choose_workers(0, 1000) == 7


ORPHANS = """
import time
from hornbook.text.pool import run_tasks
if __name__ == "__main__":
    print("ready", flush=True)
    list(run_tasks(time.sleep, [0.01, 0.01, 600, 600], 2))
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(children) < 3 and time.monotonic() < deadline:  # two workers and the resource tracker
        time.sleep(0.1)
        children = psutil.Process(parent.pid).children(recursive=True)
    time.sleep(1)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert len(children) >= 2
    assert not alive
