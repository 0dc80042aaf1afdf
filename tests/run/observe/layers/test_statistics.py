"""`log.statistics_every`: the numbers are those of the definitions, the same on any ranks, and no bit of training changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
ON, OFF = "log.statistics_every=4", "log.statistics_every=0"


def statistics(folder: Path) -> list[dict[str, Any]]:
    return list(read_records(RunDir(folder).statistics))


def last_weights(folder: Path) -> dict[str, bytes]:
    newest = max(RunDir(folder).checkpoints.glob("step-*"))
    return {path.name: path.read_bytes() for path in sorted(newest.rglob("*.safetensors"))}


def test_it_only_looks(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "off", OFF)
    launch_run(tmp_path / "on", ON)
    assert branch(tmp_path / "on") == branch(tmp_path / "off")
    assert last_weights(tmp_path / "on") == last_weights(tmp_path / "off")
    assert not RunDir(tmp_path / "off").statistics.exists()
    found = statistics(tmp_path / "on")
    assert [each["step"] for each in found] == [4, 8, 12]
    print(json.dumps(found[0], indent=1))
