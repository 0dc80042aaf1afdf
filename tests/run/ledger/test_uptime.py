"""The mean time between failures of a run, by the records of its ledger."""

from pathlib import Path

import pytest

from hornbook.files.run_directory import RunDir
from hornbook.run.ledger.ledger import At, Ledger, read_past
from hornbook.run.ledger.uptime import Uptime, expected_mtbf

HOUR = 3600.0


def after(*records: tuple[str, float]) -> Uptime:
    """The uptime after records of these kinds, each at so many hours."""
    found = Uptime()
    for kind, hours in records:
        found = found.after({"kind": kind, "attempt": 1, "time": 1e9 + hours * HOUR})
    return found


def test_the_setting_counts_as_one_failure() -> None:
    assert expected_mtbf(24.0, 0.0, 0) == 24.0
    assert expected_mtbf(24.0, 240.0, 0) == 264.0
    assert expected_mtbf(24.0, 24.0, 1) == 24.0
    assert expected_mtbf(24.0, 6.0, 9) == 3.0


def test_without_a_record_nothing_has_been_trained() -> None:
    assert (Uptime().hours(1e9), Uptime().failures) == (0.0, 0)


def test_a_stop_or_an_end_is_no_failure_and_the_time_between_attempts_does_not_count() -> None:
    for end in ("stop", "finish", "pause"):
        found = after(("start", 0), ("save", 1), (end, 2), ("resume", 100), ("save", 103))
        assert (found.failures, found.hours(1e9 + 104 * HOUR)) == (0, pytest.approx(6.0))


def test_a_restart_is_one_failure() -> None:
    found = after(("start", 0), ("save", 1), ("restart", 2), ("resume", 3))
    assert (found.failures, found.hours(1e9 + 3 * HOUR)) == (1, pytest.approx(2.0))
    found = after(("start", 0), ("restart", 2), ("restart", 3), ("resume", 4), ("stop", 5))
    assert (found.failures, found.hours(1e9 + 50 * HOUR)) == (2, pytest.approx(3.0))


def test_a_resume_after_a_death_without_a_record_is_one_failure() -> None:
    found = after(("start", 0), ("save", 1), ("resume", 8), ("save", 9), ("resume", 20))
    assert (found.failures, found.hours(1e9 + 20 * HOUR)) == (2, pytest.approx(2.0))


def test_a_stop_that_was_asked_for_but_not_reached_is_a_failure() -> None:
    assert after(("start", 0), ("stop_requested", 1), ("resume", 2)).failures == 1


def test_an_error_is_one_failure_but_not_that_with_which_a_pause_ends() -> None:
    assert after(("start", 0), ("fail", 1), ("resume", 2)).failures == 1
    assert after(("start", 0), ("restart", 1), ("fail", 1), ("resume", 2)).failures == 1
    assert after(("start", 0), ("pause", 1), ("fail", 1), ("resume", 2)).failures == 0
    assert after(("fail", 0), ("start", 1)).failures == 0


def test_a_clock_that_is_set_back_takes_no_time_away() -> None:
    assert after(("start", 0), ("save", 5), ("save", 1), ("stop", 2)).hours(0.0) == pytest.approx(6.0)
    assert after(("start", 5)).hours(1e9) == 0.0


def test_records_without_a_time_count_no_time() -> None:
    found = after(("start", 1), ("save", 2)).after({"kind": "save", "attempt": 1})
    assert found.hours(1e9 + 2 * HOUR) == pytest.approx(1.0)


def test_the_ledger_knows_it_for_every_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, run = [1e9], RunDir(tmp_path).create()
    monkeypatch.setattr("hornbook.run.ledger.ledger.time.time", lambda: now[0])
    for mode in ("start", "resume"):
        with Ledger(run) as ledger:
            ledger.note(mode, At())
            now[0] += 2 * HOUR
            ledger.note("save", At(3, 30), seconds=7.0 if mode == "start" else 4.0)
            here = ledger.now
        now[0] += 50 * HOUR
    past = read_past(run)
    assert here.uptime == past.uptime
    assert (past.uptime.failures, past.uptime.seconds, past.slowest_save) == (1, pytest.approx(4 * HOUR), 7.0)
