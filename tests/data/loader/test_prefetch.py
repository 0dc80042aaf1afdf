import gc
import subprocess
import sys
import threading
import time

import pytest

from hornbook.data.loader.prefetch import Prefetcher


def threads() -> int:
    return sum(thread.name.startswith("hornbook-prefetch") for thread in threading.enumerate())


def test_values_come_ahead_and_wrong_guesses_are_dropped() -> None:
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key * key

    ahead = Prefetcher(make)
    assert ahead.get(3, 4) == 9
    while made != [3, 4]:
        time.sleep(0.001)
    assert ahead.get(4, 5) == 16
    assert made[:2] == [3, 4], "the value made ahead is used, not made twice"
    assert ahead.get(9, 10) == 81
    assert ahead.get(10, 11) == 100
    ahead.close()
    assert ahead.get(1, 2) == 1
    ahead.close()
    assert threads() == 0


def test_an_error_is_raised_for_its_own_key_only() -> None:
    def make(key: int) -> int:
        if key == 2:
            raise RuntimeError("bad block")
        return key

    ahead = Prefetcher(make)
    assert ahead.get(1, 2) == 1
    with pytest.raises(RuntimeError, match="bad block"):
        ahead.get(2, 3)
    assert ahead.get(1, 2) == 1
    assert ahead.get(7, 8) == 7, "the failed guess does not matter any more"
    ahead.close()


def test_the_thread_ends_with_its_owner() -> None:
    ahead = Prefetcher(str)
    assert ahead.get(1, 2) == "1"
    assert threads() == 1
    del ahead
    gc.collect()
    assert threads() == 0


def test_the_interpreter_ends_cleanly_while_a_value_is_made() -> None:
    code = (
        "import time\n"
        "from hornbook.data.loader.prefetch import Prefetcher\n"
        "def make(key):\n"
        "    time.sleep(0.3 * key)\n"
        "    return key\n"
        "Prefetcher.kept = Prefetcher(make)\n"
        "print(Prefetcher.kept.get(0, 1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
