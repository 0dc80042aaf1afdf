"""The ledger: order, chain, replay."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import IntegrityError, StorageError
from hornbook.files.ballast import reserve
from hornbook.files.journal import read_records, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.run.ledger.ledger import At, Ledger, Monotone, RunWriter, replay


def test_each_start_is_an_attempt(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    for attempt in (1, 2, 3):
        with Ledger(run) as ledger:
            assert ledger.attempt == attempt
            ledger.note("start", At())
    with Ledger(run) as ledger:
        assert ledger.attempt == 4
    with Ledger(run) as ledger:  # nothing was done in attempt 4, so there was none
        assert ledger.attempt == 4


def test_a_note_is_on_disk_before_anyone_hears_of_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    heard = []

    def listen(record: dict) -> None:
        heard.append((record["kind"], [stored["kind"] for stored in read_records(run.events)]))

    with Ledger(run) as ledger:
        ledger.listeners.append(listen)
        ledger.note("start", At())
        ledger.note("save", At(3, 30), checkpoint="x")
    assert heard == [("start", ["start"]), ("save", ["start", "save"])]
    assert verify_chain(run.events) == 2


def test_secrets_in_texts_are_hidden(tmp_path: Path) -> None:
    run, token = RunDir(tmp_path).create(), "ghp_" + "aB3dE6gH9j" * 4
    with Ledger(run) as ledger:
        ledger.note("start", At(), argv=["train", f"--hub={token}"])
        ledger.note("intervention", At(3, 30), reason=f"as {token} said", changes=[])
    with pytest.raises(RuntimeError), Ledger(run):
        raise RuntimeError(f"cannot open s3://me:{token}@bucket")
    assert token not in run.events.read_text()
    assert [record.get("text") for record in read_records(run.events)][-1] == "cannot open s3://me:[hidden]@bucket"
    assert verify_chain(run.events) == 3


def test_a_lost_line_is_noticed(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    with Ledger(run) as ledger:
        for step in range(3):
            ledger.note("save", At(step))
    lines = run.events.read_text().splitlines(keepends=True)
    run.events.write_text(lines[0] + lines[2])
    with pytest.raises(IntegrityError, match="missing or foreign"):
        Ledger(run)


def test_replay_folds_in_order() -> None:
    change = {"key": "optim.lr", "old": 1, "new": 2}
    records = [
        {"attempt": 1, "origin": {"kind": "fork", "checkpoint": "/x"}},
        {"attempt": 2, "changes": [change, {"key": "optim.schedule.floor", "old": 0.1, "new": 0.2}]},
        {"attempt": 2, "windows": [[10, 20]]},
        {"attempt": 3, "changes": [{**change, "new": 3}, {"key": "optim.schedule.floor", "new": None, "gone": True}]},
        {"attempt": 3, "windows": [[40, 50]]},
    ]
    origin = {"kind": "fork", "checkpoint": "/x"}
    assert replay(records) == Monotone(3, {"optim.lr": 3}, [(10, 20), (40, 50)], origin)
    assert replay([]) == Monotone()


@pytest.mark.parametrize(("name", "left"), [("step-00000008", [4]), ("step-00000008.old", [4, 8])])
def test_a_checkpoint_that_was_set_aside_is_saved_no_more(name: str, left: list[int]) -> None:
    """The copy that its replacement left behind is none of it."""
    saves: list[dict[str, Any]] = [{"kind": "save", "attempt": 1, "step": step, "tokens": 1} for step in (4, 8)]
    damaged = {"kind": "checkpoint_damaged", "attempt": 2, "step": 4, "tokens": 1, "path": f"run/checkpoints/{name}"}
    assert sorted(replay([*saves, damaged]).saved_manifests) == left


def test_a_failure_is_noted_with_where_it_was(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    with Ledger(run) as ledger:
        ledger.note("save", At(7, 70))
        ledger.__exit__(RuntimeError, RuntimeError("the reason"), None)
    last = list(read_records(run.events))[-1]
    assert (last["kind"], last["step"], last["error"], last["text"]) == ("fail", 7, "RuntimeError", "the reason")


def test_a_full_disk_is_not_noted_on_the_full_disk(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    with pytest.raises(StorageError), Ledger(run):
        raise StorageError("full")
    assert list(read_records(run.events)) == []


def test_a_record_that_meets_a_full_disk_is_written_in_place_of_ballast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write = RunDir(tmp_path).create(), os.write

    def on_a_full_disk(file: int, data: bytes) -> int:
        if not run.ballast.exists():
            return write(file, data)
        write(file, data[:9])  # what still fits
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Ledger(run) as ledger:
        ledger.note("start", At())
        reserve(run.ballast, 10_000)
        output = RunWriter(run, ledger, ballast=10_000)
        assert not output.is_disk_full
        monkeypatch.setattr(os, "write", on_a_full_disk)
        ledger.note("save", At(4))
        assert output.is_disk_full
        assert not replace(output, is_rank0=False).is_disk_full
    assert [record["kind"] for record in read_records(run.events)] == ["start", "save"]
    assert verify_chain(run.events) == 2
