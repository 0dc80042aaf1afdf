"""Several hosts for real: network namespaces on one machine, joined by a bridge, each with an address of its own."""

import functools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir

pytestmark = pytest.mark.slow
TWO = ("parallel.data=2", "train.micro_batch=1", "checkpoint.background=false")
PROGRAM = ("-m", "hornbook.cli.main")
IMPATIENT = """
import sys, hornbook.run.loop.training_loop
import hornbook.run.loop.async_checkpointer as saves
from hornbook.cli.main import main
hornbook.run.loop.training_loop.MIN_TIMEOUT = hornbook.run.loop.training_loop.MAX_TIMEOUT = saves.MIN_DEADLINE = 8.0
sys.exit(main(sys.argv[1:]))
"""
SETUP = """
set -e
mount -t tmpfs none /run
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
for n in {numbers}; do
    ip netns add h$n
    ip link add v$n type veth peer name eth0 netns h$n
    ip link set v$n master br0 up
    ip -n h$n link set lo up
    ip -n h$n addr add 192.168.9.$n/24 dev eth0
    ip -n h$n link set eth0 up
done
set +e
"""


@functools.cache
def missing() -> str:
    """Why this system has no namespaces for a test; "" where it has."""
    words = ["unshare", "-Urnm", "bash", "-c", SETUP.format(numbers="1")]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def hosts(tmp_path: Path) -> Callable[..., tuple[list[int], list[str], float]]:
    """hosts(words of each, before=commands) -> (exit codes, what each said, seconds)."""
    if reason := missing():
        pytest.skip(f"no network namespaces here: {reason}")

    def run(
        *words: Sequence[str],
        before: str = "",
        environ: str = "",
        program: Sequence[str] = PROGRAM,
        names: bool = False,
    ) -> tuple[list[int], list[str], float]:
        numbers = range(1, len(words) + 1)
        lines = [SETUP.format(numbers=" ".join(map(str, numbers))), before]
        for number, each in zip(numbers, words, strict=True):
            master = "node1" if names else "192.168.9.1"
            node = f"HORNBOOK_NODES={len(words)} HORNBOOK_NODE={number - 1} MASTER_ADDR={master} MASTER_PORT=29400"
            command = shlex.join([sys.executable, *program, *each])
            if names:
                table = tmp_path / f"hosts-{number}"
                table.write_text(own_names(number, len(words)))
                command = f"unshare -m sh -c {shlex.quote(f'mount --bind {table} /etc/hosts && exec {command}')}"
            log = tmp_path / f"host-{number}.txt"
            lines.append(f"ip netns exec h{number} env {node} {environ} {command} >{log} 2>&1 & p{number}=$!")
        lines += [f"wait $p{number}; echo $?" for number in numbers]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        started = time.monotonic()
        done = subprocess.run(
            ["unshare", "-Urnm", "--kill-child", "bash", "-c", "\n".join(lines)],
            capture_output=True,
            text=True,
            timeout=170,
            env=environment,
            check=False,
        )
        texts = [(tmp_path / f"host-{number}.txt").read_text() for number in numbers]
        assert done.returncode == 0, done.stderr
        return [int(line) for line in done.stdout.split()], texts, time.monotonic() - started

    return run


def own_names(number: int, hosts: int) -> str:
    """/etc/hosts as Debian sets it up: a host's own name is a loopback address, and the others know it by another."""
    others = [f"192.168.9.{other} node{other}" for other in range(1, hosts + 1) if other != number]
    return "\n".join(["127.0.0.1 localhost", f"127.0.1.1 node{number}", *others, ""])


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The same run on two ranks of one machine."""
    return train_whole(*TWO)


@pytest.fixture
def words(tmp_path: Path, tiny_settings: tuple[str, ...]) -> list[str]:
    """The command line of a run in `tmp_path / "run"`."""
    return ["train", "--out", str(tmp_path / "run"), *tiny_settings, *TWO]


def test_two_hosts_train_what_one_does(tmp_path: Path, words: list[str], hosts: Any, same: Any):
    codes, texts, _ = hosts(words, words)
    assert codes == [Exit.DONE] * 2, texts
    same(tmp_path / "run")


def test_hosts_whose_own_names_are_loopback_addresses(tmp_path: Path, words: list[str], hosts: Any, same: Any):
    codes, texts, _ = hosts(words, words, names=True)
    assert codes == [Exit.DONE] * 2, texts
    same(tmp_path / "run")


def test_a_missing_link_between_two_of_three_hosts_is_named_on_all(tmp_path: Path, words: list[str], hosts: Any):
    three = [*words, "parallel.data=3", "train.batch_tokens=192"]
    cut = "ip -n h2 route add blackhole 192.168.9.3; ip -n h3 route add blackhole 192.168.9.2"
    codes, texts, _ = hosts(three, three, three, before=cut)
    assert codes == [Exit.USAGE] * 3, texts
    for text in texts:
        assert "(192.168.9.2) does not reach rank 2" in text
    assert not (tmp_path / "run").exists()


def test_a_host_whose_link_is_down_is_named(tmp_path: Path, words: list[str], hosts: Any):
    codes, texts, seconds = hosts(words, words, before="ip link set v2 down", environ="HORNBOOK_ARRIVAL_SECONDS=15")
    assert codes == [Exit.RESUMABLE] * 2, texts
    assert "rank 1 of 2 did not arrive in 15 s" in texts[0]
    assert "rank 0 did not arrive in 15 s: nothing answers at 192.168.9.1:29400" in texts[1]
    assert not (tmp_path / "run").exists()
    assert seconds < 150


def test_a_host_that_falls_off_in_training_ends_the_run_and_no_process_is_left(
    tmp_path: Path, words: list[str], hosts: Any
):
    long = [*words, "train.tokens=5M", "checkpoint.every=5"]
    metrics = RunDir(tmp_path / "run").metrics
    cut = f"(while [ ! -s {metrics} ]; do sleep 0.1; done; ip -n h2 link set eth0 down) &"
    codes, texts, _ = hosts(long, long, before=cut, program=("-c", IMPATIENT))
    assert codes == [Exit.RESUMABLE] * 2, texts
    for text in texts:  # in a step, or in a save
        assert "another rank went away" in text or "did not do its part of a checkpoint" in text
