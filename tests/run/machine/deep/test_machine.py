"""`hornbook doctor --deep`: sound machines pass, each fault fails a line, and the exit code says whose fault it is."""

import json
import os
import shutil
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.run.machine.checks import CANNOT_MEET, Check
from hornbook.run.machine.deep import machine, slots
from hornbook.run.machine.deep.machine import check_clock, check_data, check_read_back, check_throttling, slot_lines
from hornbook.run.machine.deep.slots import SlotReport, run_slots

SOUND = {"fp32": ["a", "a"], "bf16": ["b", "b"]}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DISK_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "CLOCK_SECONDS", 0.02)


def verdicts(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.verdict for check in checks}


@pytest.mark.parametrize(
    ("report", "code", "wrong"),
    [
        (SlotReport(1, SOUND), Exit.DONE, ""),
        (SlotReport(1, {**SOUND, "fp32": ["a", "x"]}), Exit.HARDWARE, "products"),
        (SlotReport(1, {**SOUND, "fp32": ["x", "x"]}), Exit.HARDWARE, "products"),
        (SlotReport(1, SOUND, "word 3 of 8"), Exit.HARDWARE, "memory"),
    ],
)
def test_the_exit_code_says_that_hardware_is_suspected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    report: SlotReport,
    code: int,
    wrong: str,
) -> None:
    reports = [SlotReport(0, SOUND, echo={"1": 900.0}), report]
    monkeypatch.setattr(machine, "run_slots", lambda *_: reports)
    assert main(["doctor", "--deep", "--json", "--folder", str(tmp_path)]) == code
    found = json.loads(capsys.readouterr().out)
    failed = [check["name"] for check in found["checks"] if check["verdict"] == "fail"]
    assert failed == ([wrong] if wrong else [])
    assert list(tmp_path.iterdir()) == []
    for check in found["checks"]:
        assert (check["verdict"] == "ok") == (check["remedy"] == ""), check


def test_slots_answer_from_a_process_of_their_own() -> None:
    reports = run_slots([0, 1], "cpu", 1 << 20)
    assert verdicts(slot_lines(reports, "cpu", 1 << 20)) == {"products": "ok", "memory": "ok", "echo": "ok"}
    assert slot_lines(reports, "cpu", 1 << 20)[2].text.startswith("1 pairs, ")


def test_a_slot_whose_neighbour_died_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot send anything any more, and is sound all the same."""

    def lose(*_: object, **__: object) -> None:
        raise RuntimeError("Connection closed by peer\nand so on")

    monkeypatch.setattr(slots.dist, "init_process_group", lose)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    alone = slots.be_slot(0, 0, 2, "cpu", 1 << 16, str(tmp_path / "store"))
    assert (alone.alone, alone.error, len(alone.golden["fp32"])) == ("Connection closed by peer", "", slots.ROUNDS)
    dead = SlotReport(1, error="was killed within the check")
    faults, problems = slots.judge([alone, dead])
    assert [(fault.slot, fault.test) for fault in faults] == [(1, "answer")]
    assert problems == []
    (problem,) = slots.judge([alone, alone])[1]
    assert problem.text == "slot 0 cannot reach the others: Connection closed by peer"


def test_what_no_slot_can_be_blamed_for_is_told_where_it_belongs() -> None:
    """With the remedy of the network where slots do not reach each other, and of the pair where it has other bytes."""
    alone = [SlotReport(slot, SOUND, alone="Connection closed by peer") for slot in (0, 1)]
    lines = {line.name: line for line in slot_lines(alone, "cpu", 1 << 20)}
    assert {name: line.verdict for name, line in lines.items()} == {"products": "ok", "memory": "ok", "echo": "fail"}
    assert (lines["echo"].text, lines["echo"].remedy) == (
        "slot 0 cannot reach the others: Connection closed by peer",
        CANNOT_MEET,
    )
    pair = [SlotReport(0, SOUND, echo={"1": None}), SlotReport(1, {**SOUND, "bf16": ["c", "c"]})]
    lines = {line.name: line for line in slot_lines(pair, "cpu", 1 << 20)}
    assert "bf16 products differ between slots 0, 1" in lines["products"].text
    assert lines["echo"].text == "other bytes came back between slots 0 and 1"
    assert lines["echo"].remedy.startswith("one of them is wrong, or what connects them: leave it out")
    assert lines["products"].remedy.startswith("one of them is wrong: leave it out")


def test_faults_and_problems_share_a_line() -> None:
    odd = [SlotReport(slot, {**SOUND, "bf16": [found] * 2}) for slot, found in enumerate("bc")]
    reports = [*odd, SlotReport(2, {**SOUND, "fp32": ["x", "x"], "bf16": []})]
    (line,) = [line for line in slot_lines(reports, "cpu", 1 << 20) if line.name == "products"]
    assert "slot 2: its fp32 product differs from that of 2 slots" in line.text
    assert "bf16 products differ between slots 0, 1, without a majority" in line.text


def test_without_what_linux_alone_has_it_checks_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    monkeypatch.setattr(machine, "run_slots", lambda numbers, *_: [SlotReport(each, SOUND) for each in numbers])
    found = verdicts(machine.examine(tmp_path))
    assert found["read-back"] == found["products"] == "ok"


def test_a_disk_that_gives_back_other_bytes_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(check_read_back(tmp_path))["read-back"] == "ok"

    def write_wrongly(path: Path, block: bytes) -> None:
        path.write_bytes(block[:-1] + bytes([block[-1] ^ 1]))

    monkeypatch.setattr(machine, "write_file", write_wrongly)
    assert verdicts(check_read_back(tmp_path))["read-back"] == "fail"


def test_damaged_data_is_found(tmp_path: Path, tiny_corpus: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_corpus, data)
    for whole in (False, True):
        assert verdicts(check_data(data, whole=whole)) == {"data": "ok"}
    for shard in data.glob("tokens/*/*/*.bin"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    for whole in (False, True):
        (line,) = check_data(data, whole=whole)
        assert line.verdict == "fail"
        assert "damaged" in line.text


def test_clocks_and_throttling(tmp_path: Path) -> None:
    assert verdicts(check_clock(tmp_path)) == {"clock": "ok"}
    stat = tmp_path / "cpu.stat"
    for throttled, verdict in ((1, "ok"), (30, "warn")):
        stat.write_text(f"usage_usec 5\nnr_periods 100\nnr_throttled {throttled}\n")
        assert verdicts(check_throttling(stat)) == {"throttling": verdict}
    assert check_throttling(tmp_path / "absent") == []


def test_data_without_deep_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", "x"]) == Exit.USAGE
    assert "--data and --all-data to --deep" in capsys.readouterr().err
    for words in (["--deep"], ["--data", "x"], ["--step", "3", "--uncordon"]):  # not taken for a report of the run
        assert main(["doctor", "run", *words]) == Exit.USAGE
        assert "with a run, give --step N or --uncordon" in capsys.readouterr().err
