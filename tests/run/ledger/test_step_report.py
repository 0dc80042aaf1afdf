"""Refused updates: how they are counted, and the error after too many."""

from hornbook.errors import Exit
from hornbook.run.ledger.step_report import count_skips, diverged
from hornbook.settings.training import GuardConfig


def test_an_applied_update_resets_the_count() -> None:
    counts, before = [], 0
    for skipped in (False, True, True, False, True):
        before = count_skips(before, skipped=skipped, searching=False)
        counts.append(before)
    assert counts == [0, 1, 2, 0, 1]


def test_refusals_by_which_the_fp16_scale_finds_its_size_do_not_count() -> None:
    assert count_skips(3, skipped=True, searching=True) == 3
    assert count_skips(3, skipped=False, searching=True) == 0


def test_the_error_says_what_to_do() -> None:
    error = diverged(GuardConfig(max_skips=1), 2, 17)
    assert error.exit_code == Exit.DIVERGED
    assert "2 steps in a row, up to step 17" in str(error)
    assert "guard.max_skips is 1" in str(error)
