"""Runs on several machines, of which all are this one: one `hornbook train` per machine starts the ranks there."""

import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.doctor.run_report import diagnose_run
from tests.processes import free_port, wait_until
from tests.run.launcher import Launcher, Started

FOUR = ("parallel.data=4", "train.micro_batch=1", "checkpoint.background=false")
Begin = Callable[..., list[Started]]


def machine(number: int, port: int, nodes: int = 2) -> dict[str, str]:
    """The variables of one machine."""
    numbers = {"HORNBOOK_NODES": nodes, "HORNBOOK_NODE": number, "MASTER_PORT": port}
    return {"MASTER_ADDR": "localhost", **{name: str(value) for name, value in numbers.items()}}


@pytest.fixture
def begin(launcher: Launcher, tmp_path: Path) -> Begin:
    """begin(words of each machine) starts all of them."""

    def start(*words: Sequence[str], first: int = 0, patience: int = 30, **how: Any) -> list[Started]:
        port, patient = free_port(), {"HORNBOOK_ARRIVAL_SECONDS": str(patience)}
        return [
            launcher.start(each, tmp_path / f"machine-{number}.txt", environ=machine(number, port) | patient, **how)
            for number, each in enumerate(words, first)
        ]

    return start


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The same run on four ranks of one machine."""
    return train_whole(*FOUR)


@pytest.fixture
def words(tmp_path: Path, tiny_settings: tuple[str, ...]) -> list[str]:
    """The command line of a run in `tmp_path / "run"`."""
    return ["train", "--out", str(tmp_path / "run"), *tiny_settings, *FOUR]


def test_two_machines_of_two_ranks_train_what_one_of_four_does(
    tmp_path: Path, words: list[str], begin: Begin, same: Any
):
    machines = begin([*words, "--json"], [*words, "--json"])
    assert [each.wait() for each in machines] == [Exit.DONE] * 2, machines[0].text + machines[1].text
    same(tmp_path / "run")
    assert '"status": "finished"' in machines[0].text
    assert '"status"' not in machines[1].text  # rank 0's machine answers


def test_a_signal_to_one_machine_stops_all(tmp_path: Path, words: list[str], begin: Begin):
    long = [*words, "train.tokens=5M", "checkpoint.every=0"]
    machines = begin(long, long)
    wait_until(RunDir(tmp_path / "run").metrics.exists)
    os.kill(machines[1].pid, signal.SIGTERM)
    assert [each.wait() for each in machines] == [Exit.RESUMABLE] * 2, machines[0].text + machines[1].text


def test_a_machine_with_another_recipe_is_named_on_both(tmp_path: Path, words: list[str], begin: Begin):
    for each in begin(words, [*words, "optim.lr=0.5"]):
        assert each.wait() == Exit.USAGE
        assert "optim.lr: 0.01 on ranks 0-1, 0.5 on ranks 2-3" in each.text
    assert not (tmp_path / "run").exists()


def test_a_rank_that_dies_in_training_ends_both_machines_and_no_rank_is_left(words: list[str], begin: Begin):
    machines = begin(words, words, faults=[{"rank": 3, "phase": "clip", "step": 5, "do": "SIGKILL"}])
    assert [each.wait() for each in machines] == [Exit.RESUMABLE] * 2, machines[0].text + machines[1].text
    assert "rank 3 was killed by SIGKILL" in machines[1].text
    assert not any(each.children() for each in machines)


@pytest.mark.slow
def test_a_rank_that_hangs_ends_both_machines_and_all_stacks_are_kept(tmp_path: Path, words: list[str], begin: Begin):
    """Each machine sees its own ranks fall silent, those that hang and those that wait for them."""
    stop = [{"rank": 3, "phase": "clip", "step": 5, "do": "SIGSTOP"}]
    machines = begin(*[[*words, "guard.hang_seconds=3"]] * 2, faults=stop)
    assert [each.wait() for each in machines] == [Exit.RESUMABLE] * 2, machines[0].text + machines[1].text
    assert "rank 3 was stopped, and silent for 3" in machines[1].text
    assert not any(each.children() for each in machines)
    for rank in range(4):
        assert "most recent call first" in (tmp_path / "run" / "incidents" / "1" / f"rank-{rank}.txt").read_text()
    (hang,) = [each for each in diagnose_run(RunDir(tmp_path / "run")).findings if each.severity == "fail"]
    assert hang.name == "hang"
    assert "rank 3 is in" in hang.evidence


def test_machines_that_do_not_come_are_named_by_those_that_did(tmp_path: Path, words: list[str], begin: Begin):
    (first,) = begin(words, patience=2)
    (second,) = begin(words, first=1, patience=2)  # at another port
    assert (first.wait(), second.wait()) == (Exit.RESUMABLE, Exit.RESUMABLE)  # late is no wrong usage
    assert "ranks 2-3 of 4 did not arrive in 2 s" in first.text
    assert "rank 0 did not arrive in 2 s: nothing answers at localhost" in second.text
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_machine_that_takes_the_place_of_a_lost_one_joins_when_the_others_have_started_again(
    tmp_path: Path, words: list[str], launcher: Launcher
):
    """As pods do: the successor is there before the others have noticed. The lock is that of a lost rank 0."""
    port, run = free_port(), RunDir(tmp_path / "run")
    logs = (tmp_path / f"pod-{number}.txt" for number in range(9))

    def pod(number: int, **how: Any) -> Started:
        environ = machine(number, port) | {"HORNBOOK_ARRIVAL_SECONDS": "60"}
        return launcher.start([*words, "--resume", "auto"], next(logs), environ=environ, **how)

    first, lost = pod(0), pod(1, faults=[{"rank": 2, "phase": "clip", "step": 10, "do": "SIGSTOP"}])
    wait_until((run.checkpoints / "step-00000008").exists)
    successor = pod(1)
    wait_until(lambda: len(successor.children()) == 2)
    time.sleep(1.0)
    os.kill(lost.pid, signal.SIGKILL)
    lost.wait()
    assert first.wait() == Exit.RESUMABLE, first.text
    run.lock.write_text('{"host": "elsewhere", "pid": 7, "boot": "b", "started": "1", "since": 0.0, "beat": 3}')
    again = pod(0, run_lock__LEASE_SECONDS=0.5, run_lock__SETTLE_SECONDS=0.1, run_lock__LOCAL_DISKS=[])
    assert [again.wait(), successor.wait()] == [Exit.DONE] * 2, again.text + successor.text
    assert f"took over {run.path} from process 7 on elsewhere" in again.text
    assert "restored from" in run.log.read_text()
    assert [(run.read_state() or {}).get(key) for key in ("status", "attempt", "step")] == ["finished", 2, 12]


def test_a_rank_that_dies_while_ranks_meet_ends_its_machine_at_once(words: list[str], begin: Begin):
    (machine,) = begin(words, first=1, patience=60)
    wait_until(lambda: len(machine.children()) == 2)
    os.kill(machine.children()[0], signal.SIGKILL)
    assert machine.wait(30) == Exit.RESUMABLE, machine.text
    assert "rank 2 was killed by SIGKILL" in machine.text


FAKE_SSH = """import os, sys
host, command = sys.argv[-2:]
if host == "gone":
    print("ssh: connect to host gone port 22: Connection refused", file=sys.stderr)
    sys.exit(255)
os.execvp("bash", ["bash", "-c", command.replace("MASTER_ADDR=one", "MASTER_ADDR=localhost")])
"""


@pytest.fixture
def over_ssh(tmp_path: Path, launcher: Launcher) -> Callable[..., Started]:
    """Starts `hornbook launch --on ssh`, where ssh runs the command here."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.with_suffix(".py").write_text(FAKE_SSH)
    ssh.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$0.py" "$@"\n')
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)

    def start(hosts: str, words: Sequence[str], *more: str) -> Started:
        program = f"{shlex.quote(sys.executable)} -m hornbook.cli.main"
        launch = ["launch", *words[1:], "--on", "ssh", "--nodes", "2", "--hosts", hosts, "--ranks", "2"]
        launch += ["--program", program, "--port", str(free_port()), *more]
        environ = {"HORNBOOK_SSH": str(ssh), "PYTHONPATH": os.pathsep.join(sys.path)}
        return launcher.start(launch, tmp_path / "ssh.txt", environ=environ)

    return start


@pytest.mark.slow
def test_machines_over_ssh(tmp_path: Path, words: list[str], over_ssh: Callable[..., Started], same: Any):
    started = over_ssh("one,two", words)
    assert started.wait(240) == Exit.DONE, started.text
    same(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("spares", ["", "three"], ids=["fewer", "spare"])
def test_a_run_over_ssh_goes_on_without_a_lost_machine(
    tmp_path: Path, words: list[str], over_ssh: Callable[..., Started], whole: Path, branch: Any, spares: str
):
    """With a spare, or on the other machine alone: the same data in the same order."""
    free = [word for word in words if not word.startswith("parallel.data=")]
    started = over_ssh("one,two", free, "--spares", spares)
    run = RunDir(tmp_path / "run")
    wait_until((run.checkpoints / "step-00000004").exists, 120)
    machine = next(
        each for each in started.children() if b"HORNBOOK_NODE=1" in Path(f"/proc/{each}/cmdline").read_bytes()
    )
    os.kill(machine, signal.SIGKILL)
    assert started.wait(240) == Exit.DONE, started.text
    assert f"lost two: starting again on one{spares and ', three'}" in started.text
    steps, expected = branch(run.path), branch(whole)
    assert [each["token_hash"] for each in steps] == [each["token_hash"] for each in expected]
    assert [each["step"] for each in steps] == list(range(1, 13))


@pytest.mark.slow
def test_the_end_of_the_connections_stops_machines(tmp_path: Path, words: list[str], over_ssh: Callable[..., Started]):
    started = over_ssh("one,two", [*words, "train.tokens=5M", "checkpoint.every=0"])
    wait_until(RunDir(tmp_path / "run").metrics.exists, 120)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait() == Exit.RESUMABLE, started.text
    assert (RunDir(tmp_path / "run").read_state() or {})["status"] == "stopped"


def test_a_machine_that_ssh_does_not_reach_is_named(words: list[str], over_ssh: Callable[..., Started]):
    started = over_ssh("gone,two", words)
    assert started.wait() == Exit.USAGE
    assert "ssh does not reach gone: ssh: connect to host gone port 22: Connection refused" in started.text
