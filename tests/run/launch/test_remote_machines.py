"""Machines over ssh: when one fails, the others are ended. ssh runs the command here."""

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hornbook.errors import Exit, RankLostError, UsageError
from hornbook.run.launch import cluster
from hornbook.run.launch import remote_machines as remote
from hornbook.run.launch.cluster import STARTED, ClusterJob, ssh_commands
from hornbook.run.launch.remote_machines import run_again
from tests.processes import wait_until

PROGRAM = """
trap '{on_hangup}' HUP
if [ "$HORNBOOK_NODE" = 0 ]; then exit {code}; fi
echo $$ >pid
for ((n = 0; n < 600; n++)); do sleep 0.1; done
"""
"""A run on two machines, of which the first ends at once and the second waits for it."""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of two machines that run `program` in `tmp_path`; who does not stop is killed after a second."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/bash\nexec bash -c "${@: -1}"\n')
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(cluster, "SAVE_SECONDS", 1)
    monkeypatch.setattr(remote, "AGREE_SECONDS", 0.3)
    job = ClusterJob("run", ["bash", "program"], str(tmp_path), nodes=2, ranks=1, gpus=0)
    return ssh_commands(job, ["one", "two"], str(ssh))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("on_hangup", ["", "exit 75"], ids=["killed", "asked"])
def test_when_a_machine_fails_the_others_are_ended(
    tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str], on_hangup: str
):
    (tmp_path / "program").write_text(PROGRAM.format(on_hangup=on_hangup, code=9))
    started = time.monotonic()
    assert run_again(["one", "two"], [], 0, lambda _: commands) == Exit.RETRIES_SPENT
    assert time.monotonic() - started < 45  # of a minute, if it were left to itself
    assert "one ended with exit code 9: stopping two" in capsys.readouterr().err
    pid = int((tmp_path / "pid").read_text())
    assert is_gone(pid)


def test_a_machine_that_ends_well_leaves_the_others_their_time(tmp_path: Path, commands: list[list[str]]):
    (tmp_path / "program").write_text('[ "$HORNBOOK_NODE" = 0 ] && exit 0\nsleep 1\necho done >done\n')
    assert run_again(["one", "two"], [], 0, lambda _: commands) == Exit.DONE
    assert (tmp_path / "done").exists()


def test_the_end_of_the_launcher_ends_machines(tmp_path: Path, commands: list[list[str]]):
    """As when it is killed: the pipe ends, and nobody waits."""
    (tmp_path / "program").write_text(PROGRAM.format(on_hangup="", code=9))
    machine = remote.Machine("two", commands[1])
    wait_until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    machine.stop()
    wait_until(lambda: is_gone(pid))
    machine.finish()


def test_a_spare_takes_the_place_of_a_lost_machine_and_then_the_others_go_on_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Machines are called by what they do; the run divides over one and two of them."""
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.0)
    ends = {"good": "exit 75", "broken": "kill -9 $$", "faulty": "exit 8", "wrong": "exit 2", "last": "exit 0"}
    starts = list[list[str]]()

    def commands_of(hosts: Sequence[str]) -> list[list[str]]:
        if len(hosts) > 2:
            raise UsageError("three machines are too many")
        starts.append(list(hosts))
        return [["bash", "-c", f"echo {STARTED} >&2; {ends[host]}"] for host in hosts]

    assert run_again(["good", "broken"], ["faulty"], 9, commands_of) == Exit.RESUMABLE
    assert starts == [["good", "broken"], ["good", "faulty"], *[["good"]] * 8]
    assert (
        "lost broken: starting again on good, faulty\nlost faulty: starting again on good\n" in capsys.readouterr().err
    )
    starts.clear()
    assert run_again(["good", "last"], [], 0, commands_of) == Exit.RESUMABLE  # no restart is left
    assert run_again(["good", "wrong"], ["last"], 9, commands_of) == Exit.USAGE  # every start would meet it
    assert starts == [["good", "last"], ["good", "wrong"]]
    with pytest.raises(RankLostError, match="the connection to broken broke"):
        run_again(["broken"], [], 9, commands_of)
